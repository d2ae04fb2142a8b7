// SPDX-License-Identifier: Apache-2.0

// Command loxilight-agent turns a Kubernetes node into a loxilight node: it watches the API server,
// and configures the node's loxilightd accordingly.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
	"github.com/loxilight/loxilight/loxilight-agent/internal/agent"
	"github.com/loxilight/loxilight/loxilight-agent/internal/config"
	"github.com/loxilight/loxilight/loxilight-agent/internal/controller"
	"github.com/loxilight/loxilight/loxilight-agent/internal/kube"
)

// version is set by the linker.
var version = "dev"

// Exit codes. With the last one, EX_CONFIG of sysexits.h, a restart will not help.
const (
	exitFailed = 1
	exitUsage  = 2
	exitConfig = 78
)

func main() {
	limitMemory()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// daemonTimeout bounds a call to the daemon: thousands of objects take seconds.
const daemonTimeout = 30 * time.Second

// options are the options of the command line.
type options struct {
	config, node, kubeconfig, socket string
	health                           string // replaces health.listen if not empty
	version, check, controller       bool
}

func parse(args []string, stderr io.Writer) (o options, code int, ok bool) {
	flags := flag.NewFlagSet("loxilight-agent", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.config, "config", config.DefaultFile, "configuration `FILE`")
	flags.StringVar(&o.node, "node-name", os.Getenv("NODE_NAME"), "`NAME` of this node in the cluster; default: $NODE_NAME, or the name of the host")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`FILE` with the address of the API server; default: $KUBECONFIG, or the pod's service account")
	flags.StringVar(&o.socket, "socket", api.ControlSocket, "control socket of loxilightd, a `URL`")
	flags.BoolVar(&o.controller, "controller", false, "assign addresses from pools for the whole cluster, and nothing else: no daemon is needed")
	flags.StringVar(&o.health, "health-listen", "", "serve probes on `ADDRESS` instead of health.listen in the configuration")
	flags.BoolVar(&o.check, "check", false, "check the configuration, report its errors, and exit")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return o, 0, false
	} else if err != nil {
		return o, exitUsage, false // reported by flags
	}
	if flags.NArg() > 0 {
		fmt.Fprintf(stderr, "loxilight-agent: unexpected argument %q\n", flags.Arg(0))
		return o, exitUsage, false
	}
	return o, 0, true
}

// run is main with its inputs and outputs as parameters.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, code, ok := parse(args, stderr)
	if !ok {
		return code
	}
	if o.version {
		fmt.Fprintln(stdout, "loxilight-agent", version, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
		return 0
	}
	cfg, err := config.Load(o.config)
	if err != nil {
		fmt.Fprintln(stderr, "loxilight-agent:", err)
		return exitConfig
	}
	if o.check {
		return 0
	}
	if o.health != "" {
		cfg.Health.Listen = o.health
	}
	log := newLogger(stderr, cfg)
	kube.TameLibraries(log)
	do := work
	if o.controller {
		do = control
	}
	if err := do(ctx, &o, cfg, log); err != nil {
		log.Error("loxilight-agent ends", slog.Any("error", err))
		return exitFailed
	}
	return 0
}

func work(ctx context.Context, o *options, cfg *config.Config, log *slog.Logger) error {
	if o.node == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("name of this node: %w; set --node-name", err)
		}
		o.node = strings.ToLower(name) // as kubelets do
	}
	k, err := kube.New(kube.Options{Kubeconfig: o.kubeconfig, APIServer: cfg.APIServer, UserAgent: "loxilight-agent/" + version})
	if err != nil {
		return err
	}
	daemon, err := client.New(client.Options{Socket: o.socket, Timeout: daemonTimeout})
	if err != nil {
		return err
	}
	defer daemon.Close() // no call is in progress
	log.Info("loxilight-agent starts", slog.String("version", version), slog.String("node", o.node), slog.String("api_server", k.Host), slog.String("socket", daemon.Socket()))
	a := agent.New(agent.Options{Config: cfg, NodeName: o.node, Kube: k, Daemon: daemon, Log: log, Version: version})
	a.Run(ctx)
	log.Info("loxilight-agent stops; the current configuration stays in force")
	return nil
}

// control runs the controller that assigns addresses, instead of the agent.
func control(ctx context.Context, o *options, cfg *config.Config, log *slog.Logger) error {
	name := os.Getenv("POD_NAME")
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return fmt.Errorf("name of this host: %w; set POD_NAME", err)
		}
	}
	k, err := kube.New(kube.Options{Kubeconfig: o.kubeconfig, APIServer: cfg.APIServer, UserAgent: "loxilight-controller/" + version})
	if err != nil {
		return err
	}
	c, err := controller.New(controller.Options{Config: cfg, Name: name, Kube: k, Log: log})
	if err != nil {
		return err
	}
	log.Info("loxilight-controller starts", slog.String("version", version), slog.String("name", name), slog.String("api_server", k.Host))
	c.Run(ctx)
	log.Info("loxilight-controller ends")
	return nil
}

func newLogger(w io.Writer, cfg *config.Config) *slog.Logger {
	o := &slog.HandlerOptions{Level: cfg.Log.Level}
	if cfg.Log.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// limitMemory makes the garbage collector run more often: the objects of a cluster change
// gradually. GOGC takes precedence if set.
func limitMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(30)
	}
}
