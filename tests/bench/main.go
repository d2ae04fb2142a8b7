// SPDX-License-Identifier: Apache-2.0

// Command bench compares loxilight with plain kernel routing and with the nftables rules of
// kube-proxy, in network namespaces that it creates, and writes docs/benchmarks.md. It needs root.
// Missed targets are reported, but do not fail the run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/loxilight/loxilight/internal/testreport"
)

// groups are the parts of a run, in order.
var groups = []struct {
	name string
	run  func(*bench, context.Context) error
}{
	{"run", (*bench).run},
	{"routed", (*bench).routed},
	{"bridged", (*bench).bridged},
	{"nat", (*bench).translation},
	{"rules", (*bench).rules},
	{"policy", (*bench).policies},
	{"udp", (*bench).udp},
	{"fresh", (*bench).fresh},
	{"oneway", (*bench).oneWay},
	{"services", (*bench).many},
	{"tcp", (*bench).tcp},
	{"bulk", (*bench).bulk},
	{"cni", (*bench).cni},
	{"overlay", (*bench).overlay},
}

func main() {
	if err := command(); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command() error {
	var names []string
	for _, g := range groups {
		names = append(names, g.name)
	}
	daemon := flag.String("daemon", "bin/loxilightd", "path of loxilightd; empty: measure the other paths only")
	other := flag.String("other", "", "path of another build of loxilightd, to measure plain traffic beside")
	output := flag.String("o", "", "file to write the report to; without it, standard output")
	short := flag.Bool("short", false, "only check that everything works; the results are not meaningful")
	emulated := flag.Bool("emulated", false, "the machine is one of make bench-kernels; measures less, and reports so")
	limit := flag.Duration("limit", time.Hour, "longest time the run may take")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: bench [flags] [%s]...\n", strings.Join(names, "|"))
		flag.PrintDefaults()
	}
	flag.Parse()
	for _, name := range flag.Args() {
		if !slices.Contains(names, name) {
			return fmt.Errorf("no group %q; there are %s", name, strings.Join(names, ", "))
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("run as root: network namespaces and BPF programs need it")
	}
	alone, err := net.Listen("unix", "@loxilight-bench") // ends with the process
	if err != nil {
		return errors.New("another run is measuring: they would measure each other")
	}
	defer alone.Close()
	if err := sweep(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("it took longer than %s (-limit)", *limit))
	defer cancel()
	b := &bench{
		daemon: *daemon, other: *other, report: &report{at: time.Now()}, rounds: 9, packetCount: 1_000_000, connectionsMax: 1_000_000, tableSize: 1 << 20, otherTables: ampleTables,
		serviceCount: 10_000, rulesMax: 10_000, policyScale: policyScale{pods: 10_000, local: 250, policies: 10_000 + 100, ofServer: 100}, tcpConnections: 6_400, tcpRequests: 30_000, bulkTime: 200 * time.Millisecond,
		bulkOffloads: []bool{true, false}, bulkStreams: []int{1, 4},
	}
	b.paths = []string{pathKernel, pathNftables, pathOurs}
	if *daemon == "" {
		b.paths = b.paths[:2]
	}
	if *short {
		b.shorten()
	}
	if *emulated {
		b.emulate()
	}
	err = b.all(ctx, flag.Args())
	if ctx.Err() != nil && *output != "" { // write the results so far
		return errors.Join(fmt.Errorf("%s is unchanged: the run was interrupted: %w", *output, context.Cause(ctx)), err, b.write(""))
	}
	return errors.Join(err, b.write(*output))
}

// sweep removes the directories of a killed run, which leaves nothing else behind.
func sweep() error {
	stale, err := filepath.Glob(filepath.Join(os.TempDir(), tempPrefix+"*"))
	for _, dir := range stale {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// all runs the requested groups, by default every one. A failed group does not stop the others.
func (b *bench) all(ctx context.Context, names []string) (err error) {
	if b.report.machine, err = testreport.Machine(); err != nil {
		return err
	}
	b.report.rounds = b.rounds
	for _, g := range groups {
		if len(names) > 0 && !slices.Contains(names, g.name) {
			continue
		}
		begin := time.Now()
		failed := g.run(b, ctx)
		if failed != nil && isUnsupported(failed) { // not supported (or no longer): no failure
			b.report.failures = append(b.report.failures, fmt.Sprintf("%s: %v", g.name, failed))
		} else if failed != nil {
			failed = fmt.Errorf("%s: %w", g.name, failed)
			b.report.failures = append(b.report.failures, failed.Error())
			err = errors.Join(err, failed)
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", g.name, time.Since(begin).Round(time.Second))
	}
	return err
}

func (b *bench) write(path string) error {
	var text strings.Builder
	if err := b.report.write(&text); err != nil {
		return err
	}
	if path == "" {
		_, err := io.WriteString(os.Stdout, text.String())
		return err
	}
	whole, err := carryParts(path, text.String())
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, []byte(whole), 0o644); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s is written; %d of %d targets missed\n", path, b.report.missed, len(b.report.targets))
	return nil
}

// carryParts returns a report with the parts that other programs added to the previous report.
func carryParts(path, report string) (string, error) {
	old, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return report, nil
	}
	if err != nil {
		return "", err
	}
	for _, name := range testreport.Parts {
		part, err := testreport.Part(string(old), name)
		if err == nil {
			report, err = testreport.Put(report, name, part)
		}
		if err != nil {
			return "", fmt.Errorf("%s is unchanged: %w", path, err)
		}
	}
	return report, nil
}
