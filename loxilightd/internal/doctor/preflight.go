// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"strings"

	"github.com/loxilight/loxilight/datapath"
)

// checkPreflight reports what would go wrong if the data plane were started.
func (x *examiner) checkPreflight() {
	if x.Preflight == nil || x.provenByDaemon() {
		return
	}
	p, err := x.Preflight()
	if err != nil {
		x.hidden("whether the programs load", err)
		return
	}
	x.use = p.Hooks.Use
	for _, program := range p.Programs {
		if program.OK {
			continue
		}
		severity, why := "error", "the next start ends with exit code 70; the attached programs continue"
		if program.Optional {
			severity, why = "warning", "the daemon starts without it: packets take the slower path through the tc programs"
		}
		x.find(severity, "kernel.refuses", "program "+program.Copy()+" (netns "+program.Netns+")", words{
			what: "is refused by kernel " + p.Kernel + ": " + strings.Join(append([]string{program.Error}, program.Verifier...), "\n"),
			why:  why,
			do:   "run another kernel, or another version of loxilight",
		}, nil)
	}
	if p.Hooks.Error != "" { // it is empty if the program to attach is refused
		x.find("error", "kernel.hooks", "hooks", words{
			what: "programs cannot be attached: " + p.Hooks.Error, why: "no Interface becomes Ready",
			do: "run a kernel with tcx (6.6 and later) or CONFIG_NET_CLS_BPF with CONFIG_NET_SCH_INGRESS",
		}, nil)
	} else if p.Hooks.Use == "tc" {
		x.findFallback(p.Hooks.Fallback)
	}
	if p.Pins.Action == datapath.PinsRefuse {
		why := p.Pins.Error
		for _, m := range p.Pins.Maps {
			if m.Action == datapath.PinsRefuse {
				why += "; map " + m.Map + ": " + m.Reason
			}
		}
		x.find("error", "pins.refused", x.Config.PinDir, words{
			what: "cannot be taken over by this version: " + strings.TrimPrefix(why, "; "),
			why:  "the next start ends with exit code 70; the attached programs continue",
			do:   "install the version again that pinned it; or, ending forwarding and all connections, stop the daemon and run llcli detach",
		}, nil)
	}
}

// provenByDaemon reports whether a daemon with this version has attached programs, which proves
// that they load.
func (x *examiner) provenByDaemon() bool {
	s, v := x.daemon.status, x.daemon.version
	if s == nil || v == nil || v.Version != x.Version || len(s.Datapath.Hooks) == 0 {
		return false
	}
	x.use, _, _ = strings.Cut(s.Datapath.Hooks[0].Hook, "-")
	if x.use == "tc" {
		x.findFallback(s.Datapath.Fallbacks["tcx"])
	}
	return true
}

func (x *examiner) findFallback(why string) {
	x.find("note", "kernel.tcx", "hooks", words{
		what: "programs are attached with cls_bpf instead of tcx: " + why,
		why:  "it works; but another program can attach before ours, and if it deletes the qdisc clsact, ours are detached until the daemon repairs that",
		do:   "nothing, or run a kernel from 6.6 on",
	}, nil)
}
