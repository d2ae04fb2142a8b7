// SPDX-License-Identifier: Apache-2.0

package api

import "encoding/json"

// MethodCNI executes a Container Network Interface (CNI) command.
const MethodCNI = "cni"

// Commands of the method cni.
const (
	CNIAdd    = "ADD"
	CNIDel    = "DEL"
	CNICheck  = "CHECK"
	CNIGC     = "GC"
	CNIStatus = "STATUS"
)

// CNIQueue is the directory, within the daemon's stateDir, for DEL commands that were requested
// while no daemon answered: one file each, containing a [CNIParams] in JSON.
const CNIQueue = "cni-queue"

// CNIParams are the parameters of cni: a runtime's input to a plugin.
type CNIParams struct {
	Command     string `json:"command"`               // CNI_COMMAND
	ContainerID string `json:"containerID,omitempty"` // CNI_CONTAINERID; ADD, DEL, CHECK
	Netns       string `json:"netns,omitempty"`       // a path; optional for DEL
	IfName      string `json:"ifName,omitempty"`      // CNI_IFNAME; ADD, DEL, CHECK
	Args        string `json:"args,omitempty"`        // CNI_ARGS: KEY=VALUE;…
	Path        string `json:"path,omitempty"`        // CNI_PATH; not used: IPAM plugins come from the directories in cni.ipamPlugins
	// Config is the network configuration that the runtime gives the plugin.
	Config json.RawMessage `json:"config"`
}

// CNI error codes: [ErrorData.CNICode].
const (
	CNIVersionUnsupported = 1
	CNIFieldUnsupported   = 2
	CNIContainerUnknown   = 3 // and no cleanup is needed
	CNIEnvironmentInvalid = 4
	CNIFailedIO           = 5
	CNIDecodingFailed     = 6
	CNIConfigInvalid      = 7
	CNITryAgain           = 11
	CNINotAvailable       = 50 // STATUS: no ADD can be served
	CNINotConnected       = 51 // STATUS: no ADD can be served, and existing containers may lack connectivity
	CNIFailed             = 999
)

// CNIVersions are the versions of the specification that cni supports, oldest first.
var CNIVersions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}
