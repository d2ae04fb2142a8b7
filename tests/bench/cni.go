// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/loxilight/loxilight/api"
)

// Debian's plugin directory, and the plugin with which ours is compared.
const (
	debianPlugins = "/usr/lib/cni"
	pathPlugin    = "bridge"
)

// cniPods pods are added one after the other, then all at once; cniMany pods are added all at once,
// as when a node starts.
const (
	cniPods = 50
	cniMany = 200
)

// attacher adds pods with one plugin.
type attacher struct {
	node    *namespace
	plugin  string // path
	path    string // CNI_PATH
	config  string
	pods    []*namespace
	counter int
}

// command runs the plugin in the namespace of the node, as a runtime does.
func (a *attacher) command(command, id string, pod *namespace) error {
	return a.node.do(func() error {
		cmd := exec.Command(a.plugin)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CNI_PATH=" + a.path, "CNI_COMMAND=" + command, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0",
			fmt.Sprintf("CNI_NETNS=/proc/%d/fd/%d", os.Getpid(), int(pod.handle))}
		cmd.Stdin = strings.NewReader(a.config)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.Output(); err != nil {
			return fmt.Errorf("%s %s: %w: %s", filepath.Base(a.plugin), command, err, firstLines(out))
		}
		return nil
	})
}

// add adds count pods, atOnce at a time, and returns the sorted durations.
func (a *attacher) add(ctx context.Context, count, atOnce int) ([]time.Duration, error) {
	pods := make([]*namespace, count)
	for i := range pods {
		var err error
		if pods[i], err = newNamespace(); err != nil {
			return nil, err
		}
		a.pods = append(a.pods, pods[i])
	}
	took, errs := make([]time.Duration, count), make([]error, count)
	turns := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, pod := range pods {
		a.counter++
		id := fmt.Sprint("bench-", a.counter)
		turns <- struct{}{}
		all.Go(func() {
			begin := time.Now()
			errs[i] = a.command("ADD", id, pod)
			took[i] = time.Since(begin)
			<-turns
		})
	}
	all.Wait()
	slices.Sort(took)
	for _, err := range append(errs, ctx.Err()) {
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}

// cni compares how long our plugin and Debian's bridge plugin take to add a pod.
func (b *bench) cni(ctx context.Context) error {
	if !b.measures(pathOurs) {
		return nil
	}
	plugin := filepath.Join(filepath.Dir(b.daemon), "loxilight-cni")
	for _, path := range []string{plugin, filepath.Join(debianPlugins, "bridge"), filepath.Join(debianPlugins, "host-local")} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%w (make build, and Debian's containernetworking-plugins)", err)
		}
	}
	leases, err := os.MkdirTemp("", tempPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(leases)
	l := lineup{paths: []string{pathUnruled, pathKernel}, direct: true}
	return b.withRigs(ctx, l, 0, func(rigs []*rig) error {
		d, ok := rigs[0].balancer.(*loxilight)
		if !ok {
			return fmt.Errorf("%s: no daemon of ours", rigs[0].name)
		}
		spec := json.RawMessage(`{"subnets":["10.211.0.0/16"]}`)
		network := api.Object{Kind: api.KindPodNetwork, Name: "default", Owner: "bench", Spec: spec}
		if err := d.change(ctx, api.MethodApply, api.ApplyParams{Objects: []api.Object{network}, Change: waiting()}); err != nil {
			return err
		}
		ours := &attacher{node: rigs[0].node, plugin: plugin, path: debianPlugins,
			config: fmt.Sprintf(`{"cniVersion":"1.0.0","name":"bench","type":"loxilight-cni","socket":%q,"stateDir":%q}`, d.path("run/control.sock"), d.path("state"))}
		theirs := &attacher{node: rigs[1].node, plugin: filepath.Join(debianPlugins, "bridge"), path: debianPlugins,
			config: fmt.Sprintf(`{"cniVersion":"1.0.0","name":"bench","type":"bridge","isGateway":true,"ipam":{"type":"host-local","dataDir":%q,"subnet":"10.212.0.0/16"}}`, leases)}
		return b.attached(ctx, ours, theirs)
	})
}

// attached compares the two attachers, and adds the tables to the report.
func (b *bench) attached(ctx context.Context, ours, theirs *attacher) error {
	defer func() {
		for _, pod := range append(ours.pods, theirs.pods...) {
			pod.close() // this deletes its link, too
		}
	}()
	count, many := min(cniPods, max(10, b.rounds*10)), min(cniMany, max(20, b.rounds*40))
	s := b.report.section("Pods",
		"Duration of ADD in ms, from the start to the end of the plugin, for existing\n"+
			"namespaces: loxilight-cni with its daemon, and Debian's `bridge` with\n"+
			"`host-local`, which enforces neither a policy nor a source guard.",
		"what", pathPlugin, pathOurs, pathOurs+" to "+pathPlugin)
	for _, c := range []struct {
		name          string
		count, atOnce int
	}{{"one after the other", count, 1}, {"at once", count, count}, {"at once", many, many}} {
		count := c.count
		a, err := ours.add(ctx, count, c.atOnce)
		if err != nil {
			return err
		}
		t, err := theirs.add(ctx, count, c.atOnce)
		if err != nil {
			return err
		}
		for _, q := range []struct {
			name string
			at   int
		}{{"half within", count / 2}, {"99 % within", count * 99 / 100}} {
			ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
			s.row(fmt.Sprintf("%d %s, %s", count, c.name, q.name), fmt.Sprintf("%.1f", ms(t[q.at])), fmt.Sprintf("%.1f", ms(a[q.at])), fmt.Sprintf("%.2f", ms(a[q.at])/ms(t[q.at])))
		}
		if c.atOnce == 1 {
			b.report.atMost("99 % of ADD, one after the other", float64(a[count*99/100])/float64(time.Millisecond), 100, "ms")
		}
	}
	return b.podToPod(ctx, ours, theirs)
}
