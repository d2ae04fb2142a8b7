// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/loxilight/loxilight/api"
)

// since contains the version of the specification that introduced a command.
var since = map[string]string{api.CNICheck: "0.4.0", api.CNIGC: "1.1.0", api.CNIStatus: "1.1.0"}

// maxID is the maximum length of a container id.
const maxID = 253

// needed lists, for each variable, the commands that need it.
var needed = []struct {
	name     string
	commands []string
}{
	{"CNI_CONTAINERID", []string{api.CNIAdd, api.CNIDel, api.CNICheck}},
	{"CNI_NETNS", []string{api.CNIAdd, api.CNICheck}},
	{"CNI_IFNAME", []string{api.CNIAdd, api.CNIDel, api.CNICheck}},
}

// params makes a request from the runtime's input, or returns an error if the input is wrong.
func params(command string, env func(string) string, cfg *config, text []byte) (*api.CNIParams, *failure) {
	if _, known := timeouts[command]; !known {
		return nil, fail(api.CNIEnvironmentInvalid, "CNI_COMMAND: %q is not a known command", command)
	}
	at := slices.Index(api.CNIVersions, cfg.CNIVersion)
	switch {
	case at < 0:
		return nil, fail(api.CNIVersionUnsupported, "cniVersion: %q is not one of %s", cfg.CNIVersion, strings.Join(api.CNIVersions, ", "))
	case at < slices.Index(api.CNIVersions, since[command]):
		return nil, fail(api.CNIVersionUnsupported, "cniVersion: %s does not have %s, which was added in %s", cfg.CNIVersion, command, since[command])
	case !isWord(cfg.Name):
		return nil, fail(api.CNIConfigInvalid, "name: %q is not a valid network name: want letters, digits and, after the first character, _ . -", cfg.Name)
	case cfg.StateDir != "" && !filepath.IsAbs(cfg.StateDir):
		return nil, fail(api.CNIConfigInvalid, "stateDir: %q is not an absolute path", cfg.StateDir)
	}
	var missing []string
	for _, n := range needed {
		if slices.Contains(n.commands, command) && env(n.name) == "" {
			missing = append(missing, n.name)
		}
	}
	if len(missing) > 0 {
		return nil, fail(api.CNIEnvironmentInvalid, "not set in the environment, but required by %s: %s", command, strings.Join(missing, ", "))
	}
	p := &api.CNIParams{Command: command, Path: env("CNI_PATH"), Config: text}
	if command == api.CNIGC || command == api.CNIStatus {
		return p, nil
	}
	p.ContainerID, p.Netns, p.IfName, p.Args = env("CNI_CONTAINERID"), env("CNI_NETNS"), env("CNI_IFNAME"), env("CNI_ARGS")
	switch {
	case !isWord(p.ContainerID):
		return nil, fail(api.CNIEnvironmentInvalid, "CNI_CONTAINERID: %q is not a valid container id: want letters, digits and, after the first character, _ . -", p.ContainerID)
	case len(p.ContainerID) > maxID && command != api.CNIDel: // nothing was ever created for such an id
		return nil, fail(api.CNIEnvironmentInvalid, "CNI_CONTAINERID: has %d bytes, at most %d", len(p.ContainerID), maxID)
	case !isDevice(p.IfName):
		return nil, fail(api.CNIEnvironmentInvalid, "CNI_IFNAME: %q is not a valid device name: at most 15 characters, none of them a space, / or :", p.IfName)
	}
	return p, nil
}

// isWord reports whether s is a valid name of a network or container according to the
// specification.
func isWord(s string) bool {
	alnum := func(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
	for i := range len(s) {
		if c := s[i]; !alnum(c) && (i == 0 || c != '_' && c != '.' && c != '-') {
			return false
		}
	}
	return s != ""
}

func isDevice(s string) bool {
	return s != "" && len(s) <= 15 && s != "." && s != ".." && !strings.ContainsAny(s, "/: \t\n\v\f\r\x00")
}
