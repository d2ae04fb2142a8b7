// SPDX-License-Identifier: Apache-2.0

// Command loxilight-cni is the CNI plugin: it passes the container runtime's requests to
// loxilightd, and returns the answers. It does nothing itself, with one exception: a DEL that no
// daemon answers is written to disk, and the daemon executes it at its next start.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/api/client"
)

// version is set by the linker.
var version = "dev"

// maxConfig limits how much of the configuration is read: the configuration must fit in a request.
const maxConfig = api.MaxRequest - 16<<10

// How long the daemon may take. A DEL that takes longer is queued, as if the daemon did not answer:
// the runtime waits for it. A kubelet gives up on an ADD after two minutes at the earliest, and
// considers its runtime dead if the runtime does not answer STATUS for 30 s.
var timeouts = map[string]time.Duration{
	api.CNIAdd:    60 * time.Second,
	api.CNIDel:    700 * time.Millisecond,
	api.CNICheck:  20 * time.Second,
	api.CNIGC:     60 * time.Second,
	api.CNIStatus: 10 * time.Second,
}

// config is the part of the network configuration that the plugin itself needs.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Socket     string `json:"socket"`   // the daemon's control socket; empty: the default instance's
	StateDir   string `json:"stateDir"` // the daemon's state directory; empty: /var/lib/loxilight
}

// failure is an error in the form that the specification requires.
type failure struct {
	CNIVersion string `json:"cniVersion"`
	Code       int    `json:"code"`
	Msg        string `json:"msg"`
	Details    string `json:"details,omitempty"`
}

func (f *failure) Error() string { return f.Msg }

func fail(code int, format string, args ...any) *failure {
	return &failure{Code: code, Msg: fmt.Sprintf(format, args...)}
}

func main() { os.Exit(run(os.Getenv, os.Stdin, os.Stdout, os.Stderr)) }

// run is main with all inputs and outputs as parameters.
func run(env func(string) string, stdin io.Reader, stdout, stderr io.Writer) int {
	if env("CNI_COMMAND") == "" {
		fmt.Fprintf(stderr, "loxilight-cni %s: CNI plugin of loxilight, a client of loxilightd\nspecification versions: %v\n", version, api.CNIVersions)
		return 0
	}
	result, cfg, f := execute(env, stdin)
	if f == nil {
		if _, err := stdout.Write(result); err == nil {
			return 0
		}
		return 1 // the runtime is gone if this fails
	}
	if f.CNIVersion = cfg.CNIVersion; !slices.Contains(api.CNIVersions, f.CNIVersion) {
		f.CNIVersion = api.CNIVersions[len(api.CNIVersions)-1]
	}
	text, err := json.MarshalIndent(f, "", "    ")
	if err == nil {
		_, err = fmt.Fprintf(stdout, "%s\n", text)
	}
	if err != nil {
		fmt.Fprintln(stderr, "loxilight-cni:", f.Msg)
	}
	return 1
}

// execute executes one command. The returned configuration contains the readable fields even if
// there is an error.
func execute(env func(string) string, stdin io.Reader) ([]byte, *config, *failure) {
	cfg := &config{}
	text, err := io.ReadAll(io.LimitReader(stdin, maxConfig+1))
	switch {
	case err != nil:
		return nil, cfg, fail(api.CNIFailedIO, "read the configuration from standard input: %v", err)
	case len(text) > maxConfig:
		return nil, cfg, fail(api.CNIFailedIO, "the configuration is longer than %d bytes", maxConfig)
	}
	if err := json.Unmarshal(text, cfg); err != nil {
		return nil, cfg, fail(api.CNIDecodingFailed, "%s", explain(err))
	}
	command := env("CNI_COMMAND")
	if command == "VERSION" {
		return versions(cfg), cfg, nil
	}
	p, f := params(command, env, cfg, text)
	if f != nil {
		return nil, cfg, f
	}
	result, f := call(cfg, p)
	return result, cfg, f
}

// explain names the configuration field that cannot be read. All relevant fields are strings.
func explain(err error) string {
	wrong, ok := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case !ok:
		return fmt.Sprintf("the configuration is not valid JSON: %v", err)
	case wrong.Field == "":
		return fmt.Sprintf("the configuration is not valid: want an object, not %s %s", article(wrong.Value), wrong.Value)
	}
	return fmt.Sprintf("%s: want a string, not %s %s", wrong.Field, article(wrong.Value), wrong.Value)
}

func article(word string) string {
	if word == "array" || word == "object" {
		return "an"
	}
	return "a"
}

// versions returns the answer to VERSION.
func versions(cfg *config) []byte {
	v := struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{cfg.CNIVersion, api.CNIVersions}
	if v.CNIVersion == "" {
		v.CNIVersion = api.CNIVersions[len(api.CNIVersions)-1]
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings only
	}
	return append(text, '\n')
}

// call sends a request to the daemon.
func call(cfg *config, p *api.CNIParams) ([]byte, *failure) {
	ctx, cancel := context.WithTimeout(context.Background(), timeouts[p.Command])
	defer cancel()
	c, err := client.New(client.Options{Socket: cfg.Socket})
	if err != nil {
		return nil, fail(api.CNIConfigInvalid, "socket: %v", err)
	}
	var result json.RawMessage
	err = c.Change(ctx, api.MethodCNI, "", 0, p, &result)
	for p.Command == api.CNIStatus && restarts(ctx, err) {
		next := c.Change(ctx, api.MethodCNI, "", 0, p, &result)
		if next != nil && ctx.Err() != nil {
			break // this attempt was cut short by the timeout, so its error is less informative than the previous one
		}
		err = next
	}
	var refused *api.Error
	switch {
	case err == nil && p.Command == api.CNIAdd:
		return result, nil
	case err == nil:
		return nil, nil // the specification defines no output for the other commands
	case errors.As(err, &refused) && refused.Reason() != api.ReasonUnavailable:
		return nil, failureOf(refused)
	case p.Command == api.CNIDel:
		if queueErr := enqueue(queueDir(cfg), p); queueErr != nil {
			return nil, fail(api.CNIFailedIO, "%v; and the DEL could not be queued: %v", err, queueErr)
		}
		return nil, nil
	case refused != nil:
		return nil, failureOf(refused)
	case errors.Is(err, client.ErrTooLong):
		return nil, fail(api.CNIFailedIO, "%v", err)
	case p.Command == api.CNIStatus:
		return nil, fail(api.CNINotAvailable, "%v", err)
	default: // the daemon undoes an ADD whose client is gone
		return nil, fail(api.CNITryAgain, "%v", err)
	}
}

// restarts waits briefly if the daemon may be absent only for a moment, as during an upgrade: a
// runtime that receives the error marks the node not ready, although its pods keep working.
func restarts(ctx context.Context, err error) bool {
	if err == nil || errors.As(err, new(*api.Error)) || errors.Is(err, client.ErrTooLong) {
		return false
	}
	select {
	case <-time.After(50 * time.Millisecond):
		return true
	case <-ctx.Done():
		return false
	}
}

// failureOf converts an error from the daemon to an error for the runtime.
func failureOf(e *api.Error) *failure {
	if e.Data != nil && e.Data.CNICode != 0 {
		return fail(e.Data.CNICode, "%s", e.Message)
	}
	switch e.Reason() {
	case api.ReasonInvalid:
		return fail(api.CNIConfigInvalid, "%s", e.Message)
	case api.ReasonUnsupported:
		return fail(api.CNIFieldUnsupported, "%s", e.Message)
	case api.ReasonUnavailable, api.ReasonTimeout, api.ReasonCapacity:
		return fail(api.CNITryAgain, "%s", e.Message)
	default:
		return fail(api.CNIFailed, "%s", e.Message)
	}
}
