// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/document"
	"github.com/loxilight/loxilight/llcli/internal/changes"
	"github.com/loxilight/loxilight/llcli/internal/command"
	"github.com/loxilight/loxilight/llcli/internal/kinds"
	"github.com/spf13/cobra"
)

// drainCommand sets backends of a Service to draining, or back to active.
func drainCommand(a *command.App) *cobra.Command {
	var options changes.Options
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain NAME BACKEND…",
		Short: "Drain backends of a Service: they keep their connections and get no new ones",
		Long: `Set the state of backends to draining: they keep their connections and get no new ones,
unless no other backend is left (set the state to down to prevent this). --undo sets the
state back to active. BACKEND is an address:port, or an address for all of its ports.`,
		Example: "  llcli service drain web 10.0.1.2:8080 --wait 5s\n  llcli service drain web 10.0.1.2 --undo",
		Args:    command.NeedWords(2, "llcli service drain NAME BACKEND…"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			change, err := options.Params()
			if err != nil {
				return err
			}
			state := "draining"
			if undo {
				state = "active"
			}
			return changes.EditSpec(ctx, a, d, kinds.ServiceRef(args[0]), change, func(spec map[string]any) error {
				return kinds.SetBackends(spec, args[0], args[1:], map[string]any{"state": state})
			})
		}),
		ValidArgsFunction: kinds.CompleteServiceBackends(a),
	}
	options.Bind(cmd)
	cmd.Flags().BoolVar(&undo, "undo", false, "give them new connections again")
	return cmd
}

// backendCommand is the noun for the backends of a Service.
func backendCommand(a *command.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "backend",
		Aliases: []string{"backends"},
		Short:   "Add, change and remove backends of a Service",
		Args:    command.NoCommand,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(backendAdd(a), backendSet(a), backendRemove(a))
	return cmd
}

func backendAdd(a *command.App) *cobra.Command {
	var options changes.Options
	cmd := &cobra.Command{
		Use:     "add NAME ADDRESS:PORT[,weight=N][,state=S]…",
		Short:   "Add backends to a Service",
		Long:    "Add backends to a Service. An existing backend with another weight or state is refused:\nchange it with set.",
		Example: "  llcli service backend add web 10.0.1.4:8080 10.0.1.5:8080,weight=2 --wait 5s",
		Args:    command.NeedWords(2, "llcli service backend add NAME ADDRESS:PORT…"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			change, err := options.Params()
			if err != nil {
				return err
			}
			var added []api.Backend
			for _, text := range args[1:] {
				b, err := kinds.ParseBackend(text)
				if err != nil {
					return err
				}
				added = append(added, b)
			}
			err = changes.EditSpec(ctx, a, d, kinds.ServiceRef(args[0]), change, func(spec map[string]any) error {
				backends, _ := spec["backends"].([]any)
				for _, b := range added {
					switch i := indexOf(backends, b.Address); {
					case i < 0:
						backends = append(slices.Clip(backends), b)
					case !sameBackend(backends[i], b):
						return fmt.Errorf("%s already has backend %s with another weight or state; change it with llcli service backend set", kinds.ServiceRef(args[0]), b.Address)
					}
				}
				spec["backends"] = backends
				return nil
			})
			if e, ok := errors.AsType[*api.Error](err); ok && e.Data != nil && strings.HasPrefix(e.Data.Field, "spec.backends") {
				return command.ArgumentError(err, e, err.Error())
			}
			return err
		}),
		ValidArgsFunction: kinds.CompleteName(a, api.KindService),
	}
	options.Bind(cmd)
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
	return weight(is) == weight(b) && cmp.Or(is.State, "active") == cmp.Or(b.State, "active")
}

// indexOf returns the index of the backend with an address, or -1 if it does not exist.
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

func backendSet(a *command.App) *cobra.Command {
	var options changes.Options
	var weight int
	var state string
	cmd := &cobra.Command{
		Use:     "set NAME BACKEND…",
		Short:   "Change the weight or the state of backends",
		Long:    "Change the weight or the state of backends. BACKEND is an address:port, or an address for all of its ports.",
		Example: "  llcli service backend set web 10.0.1.2:8080 --weight 5\n  llcli service backend set web 10.0.1.3 --state down",
		Args:    command.NeedWords(2, "llcli service backend set NAME BACKEND…"),
	}
	cmd.RunE = a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
		change, err := options.Params()
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
			return command.Usagef("nothing to change; set --weight N or --state %s", kinds.AnyOf(api.BackendStates))
		}
		return changes.EditSpec(ctx, a, d, kinds.ServiceRef(args[0]), change, func(spec map[string]any) error {
			return kinds.SetBackends(spec, args[0], args[1:], fields)
		})
	})
	cmd.Flags().IntVar(&weight, "weight", 1, "its share `N` of new connections, 0 (none) to 65535")
	cmd.Flags().StringVar(&state, "state", "", "its `STATE`: active, draining (keeps its connections, gets no new ones) or down")
	command.Must(cmd.RegisterFlagCompletionFunc("weight", cobra.NoFileCompletions))
	command.Must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(api.BackendStates, cobra.ShellCompDirectiveNoFileComp)))
	options.Bind(cmd)
	cmd.ValidArgsFunction = kinds.CompleteServiceBackends(a)
	return cmd
}

func backendRemove(a *command.App) *cobra.Command {
	var options changes.Options
	cmd := &cobra.Command{
		Use:     "remove NAME BACKEND…",
		Aliases: []string{"delete"},
		Short:   "Remove backends from a Service",
		Long: `Remove backends from a Service. To let their connections end first, drain them.
BACKEND is an address:port, or an address for all of its ports.`,
		Example: "  llcli service backend remove web 10.0.1.2:8080",
		Args:    command.NeedWords(2, "llcli service backend remove NAME BACKEND…"),
		RunE: a.Run(func(ctx context.Context, d command.Daemon, args []string) error {
			change, err := options.Params()
			if err != nil {
				return err
			}
			return changes.EditSpec(ctx, a, d, kinds.ServiceRef(args[0]), change, func(spec map[string]any) error {
				chosen, err := kinds.ChooseBackends(spec, args[0], args[1:])
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
		ValidArgsFunction: kinds.CompleteServiceBackends(a),
	}
	options.Bind(cmd)
	return cmd
}
