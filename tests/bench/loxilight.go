// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// loxilight is one of our daemons in the namespace of a node, run as a user would run it:
// configured only over its control channel.
type loxilight struct {
	dir    string
	pid    int
	client *client.Client
	ended  chan error // of the process
}

// tempPrefix begins the names of our directories.
const tempPrefix = "loxilight-bench-"

// daemonPatience bounds how long the daemon may take to start, and to make a change.
const daemonPatience = time.Minute

// startLoxilight starts a daemon with tables of the given sizes and attaches it to devices of a node.
func startLoxilight(ctx context.Context, node *namespace, devices []api.InterfaceSpec, binary, tables string) (*loxilight, error) {
	dir, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		return nil, err
	}
	d := &loxilight{dir: dir, ended: make(chan error, 1)}
	if err := d.start(ctx, node, devices, binary, tables); err != nil {
		log, _ := os.ReadFile(d.path("log")) // only adds to the error
		return nil, errors.Join(err, errors.New(lastLines(log)), d.close())
	}
	return d, nil
}

func (d *loxilight) path(name string) string { return filepath.Join(d.dir, name) }

func (d *loxilight) start(ctx context.Context, node *namespace, devices []api.InterfaceSpec, binary, tables string) error {
	config := fmt.Sprintf(`instance: bench
runDir: %s
stateDir: %s
pinDir: %s
objectDir: %s
switch: {namespace: host}
tables: %s
`, d.path("run"), d.path("state"), d.path("bpf/pins"), d.path("conf.d"), tables)
	if err := os.WriteFile(d.path("config.yaml"), []byte(config), 0o600); err != nil {
		return err
	}
	for _, folder := range []string{"run", "state", "bpf", "conf.d"} {
		if err := os.Mkdir(d.path(folder), 0o750); err != nil {
			return err
		}
	}
	if err := d.spawn(node, binary); err != nil {
		return err
	}
	if err := d.dial(ctx); err != nil {
		return err
	}
	var objects []api.Object
	for _, device := range devices {
		spec, err := json.Marshal(device)
		if err != nil {
			return err
		}
		objects = append(objects, api.Object{Kind: api.KindInterface, Name: device.Device, Owner: "bench", Spec: spec})
	}
	return d.change(ctx, api.MethodApply, api.ApplyParams{Objects: objects, Change: waiting()})
}

// spawn starts the process in the namespace of the node and in a mount namespace of its own, which
// contains its BPF file system: the file system and all its pins vanish with the process. The
// process ends when the bench ends.
func (d *loxilight) spawn(node *namespace, binary string) error {
	started := make(chan error, 1)
	go func() {
		_ = node.do(func() error { // the error is sent to started
			log, err := os.OpenFile(d.path("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			if err != nil {
				started <- err
				return nil
			}
			defer log.Close()
			cmd := exec.Command(binary, "--config", d.path("config.yaml"))
			cmd.Stdout, cmd.Stderr = log, log
			cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
			if err = d.mount(); err == nil {
				err = cmd.Start()
			}
			if err == nil {
				d.pid = cmd.Process.Pid
			}
			started <- err
			if err == nil {
				d.ended <- cmd.Wait() // the thread must not end before the process
			}
			return nil
		})
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s (built by make build): %w", binary, err)
	}
	return nil
}

// mount gives the calling thread a mount namespace of its own, with a BPF file system.
func (d *loxilight) mount() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("bpf", d.path("bpf"), "bpf", 0, ""); err != nil {
		return fmt.Errorf("mount a BPF file system: %w", err)
	}
	return nil
}

// dial connects to the daemon as soon as it listens.
func (d *loxilight) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, daemonPatience)
	defer cancel()
	for {
		var err error
		d.client, err = client.Dial(ctx, client.Options{Socket: d.path("run/control.sock"), Timeout: daemonPatience})
		if err == nil {
			return nil
		}
		select {
		case end := <-d.ended:
			d.ended <- end
			return fmt.Errorf("daemon ended at once: %w", errors.Join(end, err))
		case <-ctx.Done():
			return fmt.Errorf("daemon does not listen: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// close stops the daemon and removes its leftovers.
func (d *loxilight) close() error {
	if d.client != nil {
		d.client.Close() // only closes the connection
	}
	if d.pid != 0 {
		// Only cmd.Wait in spawn reaps the process, so until then the pid belongs to it.
		if err := unix.Kill(d.pid, unix.SIGTERM); err != nil {
			return fmt.Errorf("end the daemon: %w", err)
		}
		select {
		case <-d.ended:
		case <-time.After(10 * time.Second):
			if err := unix.Kill(d.pid, unix.SIGKILL); err != nil {
				return fmt.Errorf("end the daemon: %w", err)
			}
			<-d.ended
		}
	}
	return os.RemoveAll(d.dir)
}

// waiting asks the daemon to reply only when the change is in force for packets.
func waiting() api.Change { return api.Change{Wait: api.Duration(daemonPatience)} }

func (d *loxilight) change(ctx context.Context, method string, params any) error {
	var result api.ChangeResult
	if err := d.client.Change(ctx, method, "", daemonPatience, params, &result); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	return nil
}

// objectOf returns the daemon's object for a service.
func objectOf(s service) (api.Object, error) {
	spec := api.ServiceSpec{IdleTimeout: &api.IdleTimeout{UDP: api.Duration(time.Hour)}}
	for _, protocol := range s.protocols {
		spec.Frontends = append(spec.Frontends, fmt.Sprintf("%s:%d/%s", s.address, frontendPort, protocol))
	}
	for _, b := range s.backends {
		spec.Backends = append(spec.Backends, api.Backend{Address: fmt.Sprintf("%s:%d", b, s.port)})
	}
	raw, err := json.Marshal(spec)
	return api.Object{Kind: api.KindService, Name: s.name, Owner: "bench", Spec: raw}, err
}

// replaceChunk is how many services go into one request, which is limited to 1 MiB.
const replaceChunk = 1000

// set configures exactly the given services.
func (d *loxilight) set(ctx context.Context, services []service) error {
	params := api.ReplaceParams{Owner: "bench", Kinds: []string{api.KindService}}
	if len(services) > replaceChunk {
		params.Transaction = client.NewRequestID()
	}
	for begin := 0; ; begin += replaceChunk {
		end := min(begin+replaceChunk, len(services))
		params.Objects = nil
		for _, s := range services[begin:end] {
			object, err := objectOf(s)
			if err != nil {
				return err
			}
			params.Objects = append(params.Objects, object)
		}
		params.More = end < len(services)
		if !params.More {
			params.Wait = api.Duration(daemonPatience)
		}
		if err := d.change(ctx, api.MethodReplace, params); err != nil || !params.More {
			return err
		}
	}
}

// alter updates one service.
func (d *loxilight) alter(ctx context.Context, s service) error {
	object, err := objectOf(s)
	if err != nil {
		return err
	}
	return d.change(ctx, api.MethodApply, api.ApplyParams{Objects: []api.Object{object}, Change: waiting()})
}

// resident returns the memory of the daemon itself, without the tables in the kernel.
func (d *loxilight) resident() (bytes int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("the kernel does not report the daemon's memory")
}

// version returns the daemon's version.
func (d *loxilight) version(ctx context.Context) (string, error) {
	var v api.VersionResult
	err := d.client.Call(ctx, api.MethodVersion, nil, &v)
	return fmt.Sprintf("%s (%s)", v.Version, v.Build), err
}

// hooks returns the ids of the programs on a device, by hook.
func (d *loxilight) hooks(ctx context.Context, device string) (map[string]uint32, error) {
	var status api.StatusResult
	if err := d.client.Call(ctx, api.MethodStatus, nil, &status); err != nil {
		return nil, err
	}
	ids := map[string]uint32{}
	for _, h := range status.Datapath.Hooks {
		if h.Device == device {
			_, side, _ := strings.Cut(h.Hook, "-") // tcx-ingress, tc-ingress
			ids[side] = h.ID
		}
	}
	return ids, nil
}

func lastLines(text []byte) string {
	const limit = 2000
	return strings.TrimSpace(string(text[max(0, len(text)-limit):]))
}

// verdicts returns the number of packets by verdict.
func (d *loxilight) verdicts(ctx context.Context) (map[string]uint64, error) {
	var result api.CountersResult
	err := d.client.Call(ctx, api.MethodCounters, nil, &result)
	return result.Verdicts, err
}
