// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// merge puts the values of the given flags into a spec, and leaves the rest.
func (f *serviceFlags) merge(spec map[string]any, given *pflag.FlagSet) error {
	flags := *f // it may be called again
	if given.Changed("health") && f.health.Type == "none" {
		delete(spec, "health")
		flags.health.Type = ""
	}
	if given.Changed("affinity") && f.affinity == 0 {
		delete(spec, "affinity")
	}
	said, err := flags.fields()
	if err != nil {
		return err
	}
	if given.Changed("source-range") && len(f.sourceRanges) == 0 {
		delete(spec, "sourceRanges")
	}
	if given.Changed("divert") && len(said.Divert) == 0 {
		delete(spec, "divert")
	}
	if given.Changed("announce") && !f.announce {
		delete(spec, "announce")
	}
	if _, has := spec["health"]; !has && said.Health != nil && said.Health.Type == "" {
		return usagef("it has no health check; set --health tcp, http, https or ping")
	}
	if health, _ := spec["health"].(map[string]any); health != nil && (f.health.Type == "tcp" || f.health.Type == "ping") {
		delete(health, "path") // of the http check that it was
		if f.health.Type == "ping" {
			delete(health, "port")
		}
	}
	return mergeFields(spec, said)
}

// mergeFields puts the fields that are set in a part of a spec into the spec; objects of fields
// are merged, other values are replaced.
func mergeFields(spec map[string]any, part any) error {
	raw, err := document.Marshal(part)
	if err != nil {
		return err
	}
	var said map[string]any
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&said); err != nil {
		return err
	}
	for name, value := range said {
		if value == nil {
			continue
		}
		inner, isMap := value.(map[string]any)
		before, wasMap := spec[name].(map[string]any)
		if !isMap || !wasMap {
			spec[name] = value
			continue
		}
		for key, v := range inner {
			if v != "" { // "": the type of a health check was not given
				before[key] = v
			}
		}
	}
	return nil
}

func (f *interfaceFlags) merge(spec map[string]any, given *pflag.FlagSet) error {
	said := map[string]any{}
	for name, value := range map[string]string{"device": f.Device, "address": f.Address, "netns": f.Netns, "role": f.Role, "xdp": f.XDP} {
		if given.Changed(name) {
			said[name] = value
		}
	}
	for name, other := range map[string]string{"device": "address", "address": "device"} {
		if !given.Changed(name) {
			continue
		}
		if said[name] == "" {
			return usagef("--%s: which %s?", name, name)
		}
		delete(spec, other)
	}
	return mergeFields(spec, said)
}

// setCommand changes only the given fields of one object.
func (a *app) setCommand(k *kind, flags specFlags, example string) *cobra.Command {
	var options changeOptions
	cmd := &cobra.Command{
		Use:     "set NAME",
		Aliases: []string{"update"},
		Short:   fmt.Sprintf("Change fields of %s by flags", article(k.name)),
		Long:    fmt.Sprintf("Change the fields of %s that flags name. Other fields stay as they are. A list replaces the\nwhole list; --add-… and --remove-… change single elements. --diff shows the difference first.", article(k.name)),
		Example: example,
		Args:    oneName(k.words[0]+" set", "NAME"),
	}
	flags.bind(cmd)
	own := 0 // flags of the spec that were given
	cmd.RunE = a.run(func(ctx context.Context, d Daemon, args []string) error {
		change, err := options.params()
		if err != nil {
			return err
		}
		if own == 0 {
			return usagef("nothing to change; see llcli %s set --help", k.words[0])
		}
		ref := api.ObjectRef{Kind: k.name, Name: args[0]}
		return inFlags(a.edit(ctx, d, ref, change, func(spec map[string]any) error { return flags.merge(spec, cmd.Flags()) }), flags.paths(), cmd.Flags())
	})
	var names []string
	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	cmd.PreRun = func(cmd *cobra.Command, _ []string) {
		cmd.Flags().Visit(func(flag *pflag.Flag) {
			if slices.Contains(names, flag.Name) {
				own++
			}
		})
	}
	options.bind(cmd)
	cmd.ValidArgsFunction = a.completeName(k.name)
	return cmd
}

// backendCommand is the noun for the backends of a Service.
func (a *app) backendCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "backend",
		Aliases: []string{"backends"},
		Short:   "Add, change and remove backends of a Service",
		Args:    noCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.backendAdd(), a.backendSet(), a.backendRemove())
	return cmd
}

func (a *app) backendAdd() *cobra.Command {
	var options changeOptions
	cmd := &cobra.Command{
		Use:     "add NAME ADDRESS:PORT[,weight=N][,state=S]…",
		Short:   "Add backends to a Service",
		Long:    "Add backends to a Service. An existing backend with another weight or state is refused:\nchange it with set.",
		Example: "  llcli service backend add web 10.0.1.4:8080 10.0.1.5:8080,weight=2 --wait 5s",
		Args:    needWords(2, "llcli service backend add NAME ADDRESS:PORT…"),
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			change, err := options.params()
			if err != nil {
				return err
			}
			var added []api.Backend
			for _, text := range args[1:] {
				b, err := parseBackend(text)
				if err != nil {
					return err
				}
				added = append(added, b)
			}
			err = a.edit(ctx, d, serviceRef(args[0]), change, func(spec map[string]any) error {
				backends, _ := spec["backends"].([]any)
				for _, b := range added {
					switch i := indexOf(backends, b.Address); {
					case i < 0:
						backends = append(slices.Clip(backends), b)
					case !sameBackend(backends[i], b):
						return fmt.Errorf("%s has backend %s already, and not the same; change it with llcli service backend set", serviceRef(args[0]), b.Address)
					}
				}
				spec["backends"] = backends
				return nil
			})
			if e, ok := errors.AsType[*api.Error](err); ok && e.Data != nil && strings.HasPrefix(e.Data.Field, "spec.backends") {
				return argumentError(err, e, err.Error())
			}
			return err
		}),
		ValidArgsFunction: a.completeName(api.KindService),
	}
	options.bind(cmd)
	return cmd
}

// sameBackend reports whether a backend of a spec equals the one to be added.
func sameBackend(item any, b api.Backend) bool {
	was, err := document.Marshal(item)
	if err != nil {
		return false
	}
	var is api.Backend
	if err := json.Unmarshal(was, &is); err != nil {
		return false
	}
	weight := func(b api.Backend) int {
		if b.Weight == nil {
			return 1
		}
		return *b.Weight
	}
	return weight(is) == weight(b) && or(is.State, "active") == or(b.State, "active")
}

// indexOf returns the index of the backend with an address; -1: it does not exist.
func indexOf(backends []any, address string) int {
	return slices.IndexFunc(backends, func(item any) bool {
		switch b := item.(type) {
		case map[string]any:
			return b["address"] == address
		case api.Backend: // added just now
			return b.Address == address
		default:
			return false
		}
	})
}

func (a *app) backendSet() *cobra.Command {
	var options changeOptions
	var weight int
	var state string
	cmd := &cobra.Command{
		Use:     "set NAME BACKEND…",
		Short:   "Change the weight or the state of backends",
		Long:    "Change the weight or the state of backends. BACKEND is an address:port, or an address for all of its ports.",
		Example: "  llcli service backend set web 10.0.1.2:8080 --weight 5\n  llcli service backend set web 10.0.1.3 --state down",
		Args:    needWords(2, "llcli service backend set NAME BACKEND…"),
	}
	cmd.RunE = a.run(func(ctx context.Context, d Daemon, args []string) error {
		change, err := options.params()
		if err != nil {
			return err
		}
		fields := map[string]any{}
		if cmd.Flags().Changed("weight") {
			fields["weight"] = weight
		}
		if cmd.Flags().Changed("state") {
			fields["state"] = state
		}
		if len(fields) == 0 {
			return usagef("nothing to change; set --weight N or --state active, draining or down")
		}
		return a.edit(ctx, d, serviceRef(args[0]), change, func(spec map[string]any) error {
			return setBackends(spec, args[0], args[1:], fields)
		})
	})
	cmd.Flags().IntVar(&weight, "weight", 1, "its share `N` of new connections, 0 (none) to 65535")
	cmd.Flags().StringVar(&state, "state", "", "its `STATE`: active, draining (keeps its connections, gets no new ones) or down")
	must(cmd.RegisterFlagCompletionFunc("weight", cobra.NoFileCompletions))
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"active", "draining", "down"}, cobra.ShellCompDirectiveNoFileComp)))
	options.bind(cmd)
	cmd.ValidArgsFunction = a.completeServiceBackends
	return cmd
}

func (a *app) backendRemove() *cobra.Command {
	var options changeOptions
	cmd := &cobra.Command{
		Use:     "remove NAME BACKEND…",
		Aliases: []string{"delete"},
		Short:   "Remove backends from a Service",
		Long: `Remove backends from a Service; to let their connections end first, drain them.
BACKEND is an address:port, or an address for all of its ports.`,
		Example: "  llcli service backend remove web 10.0.1.2:8080",
		Args:    needWords(2, "llcli service backend remove NAME BACKEND…"),
		RunE: a.run(func(ctx context.Context, d Daemon, args []string) error {
			change, err := options.params()
			if err != nil {
				return err
			}
			return a.edit(ctx, d, serviceRef(args[0]), change, func(spec map[string]any) error {
				chosen, err := chooseBackends(spec, args[0], args[1:])
				if err != nil {
					return err
				}
				backends, _ := spec["backends"].([]any)
				kept := make([]any, 0, len(backends))
				for i := range backends {
					if !slices.Contains(chosen, i) {
						kept = append(kept, backends[i])
					}
				}
				spec["backends"] = kept
				return nil
			})
		}),
		ValidArgsFunction: a.completeServiceBackends,
	}
	options.bind(cmd)
	return cmd
}
