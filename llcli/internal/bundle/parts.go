// SPDX-License-Identifier: Apache-2.0

package bundle

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// Limits for requests to the daemon, in objects.
const (
	maxObjects     = 5000
	maxConnections = 500
	maxCounters    = 200
	maxFiles       = 50
	maxLines       = "5000" // of the journal
)

func (b *writer) parts() []part {
	parts := b.daemonParts()
	parts = append(parts, b.programParts()...)
	parts = append(parts, b.fileParts()...)
	return append(parts, b.machineParts()...)
}

// daemonParts are the parts from the daemon.
func (b *writer) daemonParts() []part {
	if b.o.Call == nil {
		b.missing("daemon/: status, objects, counters and connections", b.o.CallErr)
		return nil
	}
	ask := func(name, what, method string, params any) part {
		return part{name: "daemon/" + name, what: what, json: true, get: func(ctx context.Context) ([]byte, error) {
			var result json.RawMessage
			return b.asked(ctx, method, params, &result)
		}}
	}
	parts := []part{
		ask("version.json", "version of the daemon", api.MethodVersion, nil),
		ask("status.json", "llcli status", api.MethodStatus, nil),
		ask("history.json", "the latest revisions: who changed which objects, and when", api.MethodHistory, api.HistoryParams{}),
		ask("counters.json", "counters of the node", api.MethodCounters, api.CountersParams{}),
		ask("connections.json", fmt.Sprintf("tracked connections, %d at most", maxConnections), api.MethodConnectionsList, api.ConnectionsListParams{Limit: maxConnections}),
	}
	for _, what := range api.NetworkViews {
		// The host's tables are listed below, by the ip commands.
		parts = append(parts, ask("switch-"+what+".json", fmt.Sprintf("llcli get %s of the switch's network namespace, a page of them", what),
			api.MethodNetworkList, api.NetworkListParams{What: what, Netns: "switch"}))
	}
	for _, kind := range api.Kinds {
		parts = append(parts, part{name: "daemon/" + strings.ToLower(kind) + "s.json", what: "objects of kind " + kind, json: true,
			get: func(ctx context.Context) ([]byte, error) { return b.objects(ctx, kind) }})
	}
	return append(parts, part{name: "daemon/service-counters.json", what: fmt.Sprintf("counters of Services, %d at most", maxCounters), json: true, get: b.serviceCounters})
}

// asked calls the daemon, and returns the result as JSON.
func (b *writer) asked(ctx context.Context, method string, params, result any) ([]byte, error) {
	if err := b.o.Call(ctx, method, params, result); err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

// eachObject calls each for the objects of a kind, until each returns false.
func (b *writer) eachObject(ctx context.Context, kind string, each func(api.Object) bool) error {
	params := api.ListParams{Kind: kind}
	for {
		var page api.ListResult
		if _, err := b.asked(ctx, api.MethodList, params, &page); err != nil {
			return err
		}
		for _, o := range page.Items {
			if !each(o) {
				return nil
			}
		}
		if params.Continue = page.Continue; params.Continue == "" {
			return nil
		}
	}
}

func (b *writer) objects(ctx context.Context, kind string) ([]byte, error) {
	objects, size := []api.Object{}, 0
	err := b.eachObject(ctx, kind, func(o api.Object) bool {
		objects = append(objects, o)
		size += len(o.Spec) + len(o.Status)
		return len(objects) < maxObjects && size < maxPart/2
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(objects)
}

func (b *writer) serviceCounters(ctx context.Context) ([]byte, error) {
	counters := map[string]json.RawMessage{}
	err := b.eachObject(ctx, api.KindService, func(o api.Object) bool {
		var c json.RawMessage
		if _, err := b.asked(ctx, api.MethodCounters, api.CountersParams{Kind: o.Kind, Name: o.Name}, &c); err == nil {
			counters[o.Name] = c
		}
		return len(counters) < maxCounters && ctx.Err() == nil
	})
	if err != nil {
		return nil, err
	}
	return json.Marshal(counters)
}

// programParts are the outputs of programs.
func (b *writer) programParts() []part {
	parts := []part{
		{name: "doctor.json", what: "findings of llcli doctor, and the desired state of the daemon or its store", json: true, ours: true, get: b.loxilightd("--config", b.o.Config, "--doctor", "--json", "--objects")},
		{name: "preflight.json", what: "llcli preflight", json: true, ours: true, get: b.loxilightd("--config", b.o.Config, "--preflight", "--json")},
		{name: "version.txt", what: "version of loxilightd as installed", get: b.loxilightd("--version")},
		{name: "versions.txt", what: "version of llcli", get: func(context.Context) ([]byte, error) { return []byte("llcli " + b.o.Version + "\n"), nil }},
	}
	for _, c := range []struct{ name, what, line string }{
		{"unit/journal.txt", "log of the unit, its last lines", "journalctl -u UNIT -n " + maxLines + " --no-pager -o short-iso-precise"},
		{"unit/show.txt", "state of the unit", "systemctl show UNIT --no-pager"},
		{"unit/cat.txt", "unit and its drop-ins", "systemctl cat UNIT --no-pager"},
		{"network/link.txt", "devices", "ip -d -s link show"},
		{"network/address.txt", "addresses", "ip address show"},
		{"network/route4.txt", "IPv4 routes of all tables", "ip -4 route show table all"},
		{"network/route6.txt", "IPv6 routes of all tables", "ip -6 route show table all"},
		{"network/rule4.txt", "IPv4 rules", "ip -4 rule show"},
		{"network/rule6.txt", "IPv6 rules", "ip -6 rule show"},
		{"network/neighbour.txt", "neighbours", "ip neigh show"},
		{"network/namespaces.txt", "network namespaces", "ip netns list"},
		{"network/qdisc.txt", "qdiscs", "tc -s qdisc show"},
		{"network/nft.txt", "nftables rules", "nft list ruleset"},
		{"network/iptables.txt", "legacy iptables rules", "iptables-legacy-save"},
		{"network/sockets.txt", "numbers of sockets", "ss -s"},
		{"bpf/programs.txt", "eBPF programs", "bpftool prog show"},
		{"bpf/maps.txt", "eBPF maps", "bpftool map show"},
		{"bpf/links.txt", "eBPF links", "bpftool link show"},
		{"bpf/net.txt", "eBPF programs on devices", "bpftool net show"},
	} {
		words := strings.Fields(strings.ReplaceAll(c.line, "UNIT", b.o.Unit))
		parts = append(parts, part{name: c.name, what: c.what + " (" + strings.Join(words, " ") + ")", get: b.output(words...)})
	}
	return append(parts, part{name: "network/filters.txt", what: "filters of devices with clsact (tc filter show)", get: b.filters})
}

func (b *writer) loxilightd(args ...string) func(context.Context) ([]byte, error) {
	if b.o.Loxilightd == "" {
		return func(context.Context) ([]byte, error) {
			return nil, errors.New("there is no loxilightd on this machine")
		}
	}
	return b.output(append([]string{b.o.Loxilightd}, args...)...)
}

// output runs a program. Output before a failure is useful too.
func (b *writer) output(words ...string) func(context.Context) ([]byte, error) {
	return func(ctx context.Context) ([]byte, error) {
		var out, errs bytes.Buffer
		code, err := b.o.Exec(ctx, limited{&out}, limited{&errs}, words[0], words[1:]...)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		if err == nil && code != 0 && words[0] != b.o.Loxilightd {
			err = fmt.Errorf("exit code %d: %s", code, strings.TrimSpace(errs.String()))
		}
		if err == nil && out.Len() == 0 && errs.Len() > 0 {
			err = errors.New(strings.TrimSpace(errs.String()))
		}
		return out.Bytes(), err
	}
}

// limited keeps only as much of a part as is needed to see that it must be truncated.
type limited struct{ w *bytes.Buffer }

func (l limited) Write(p []byte) (int, error) {
	if room := maxPart + 1 - l.w.Len(); room > 0 {
		l.w.Write(p[:min(room, len(p))]) // never fails
	}
	return len(p), nil
}

// filters lists the filters of devices that have clsact.
func (b *writer) filters(ctx context.Context) ([]byte, error) {
	qdiscs, err := b.output("tc", "qdisc", "show")(ctx)
	if err != nil {
		return nil, err
	}
	var all bytes.Buffer
	for line := range strings.Lines(string(qdiscs)) {
		f := strings.Fields(line) // qdisc clsact ffff: dev eth0 parent ffff:fff1
		if len(f) < 5 || f[1] != "clsact" && f[1] != "ingress" || f[3] != "dev" || all.Len() > maxPart {
			continue
		}
		for _, side := range []string{"ingress", "egress"} {
			out, err := b.output("tc", "filter", "show", "dev", f[4], side)(ctx)
			if err == nil && len(out) > 0 {
				fmt.Fprintf(&all, "# %s %s\n%s", f[4], side, out)
			}
		}
	}
	return all.Bytes(), nil
}

// fileParts returns the configuration, the object files, and a list of our files and directories
// with mode and owner.
func (b *writer) fileParts() []part {
	parts := []part{{name: "config/loxilightd.yaml", what: b.o.Config, get: readFile(b.o.Config)}}
	files, err := filepath.Glob(filepath.Join(b.o.ObjectDir, "*.yaml"))
	if err == nil && len(files) > maxFiles {
		b.missing("config/conf.d", fmt.Errorf("%d of %d object files are left out", len(files)-maxFiles, len(files)))
		files = files[:maxFiles]
	}
	for _, path := range files {
		parts = append(parts, part{name: "config/conf.d/" + filepath.Base(path), what: path, get: readFile(path)})
	}
	return append(parts, part{name: "files.txt", what: "files and directories of ours, with mode and owner", get: b.listing})
}

func readFile(path string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, errors.New("is not a regular file")
		}
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() // only read from
		return io.ReadAll(io.LimitReader(f, maxPart+1))
	}
}

// listing lists the directories of the instance.
func (b *writer) listing(ctx context.Context) ([]byte, error) {
	var out bytes.Buffer
	var failed error
	for _, dir := range []string{filepath.Dir(b.o.Config), b.o.RunDir, b.o.StateDir, b.o.PinDir} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if err != nil {
				fmt.Fprintf(&out, "%s: %v\n", path, err)
				return nil
			}
			info, err := os.Lstat(path)
			if err != nil {
				return nil // it has since been deleted
			}
			fmt.Fprintf(&out, "%s %s %10d %s %s\n", info.Mode(), owner(info), info.Size(), info.ModTime().UTC().Format("2006-01-02T15:04:05Z"), path)
			if out.Len() > maxPart || ctx.Err() != nil {
				return fs.SkipAll
			}
			return nil
		})
		failed = errors.Join(failed, err)
	}
	return out.Bytes(), failed
}

// kernelConfig unpacks /proc/config.gz.
func kernelConfig(path string) func(context.Context) ([]byte, error) {
	return func(context.Context) ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() // only read from
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, err
		}
		return io.ReadAll(io.LimitReader(z, maxPart+1))
	}
}
