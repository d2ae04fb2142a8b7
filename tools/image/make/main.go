// SPDX-License-Identifier: Apache-2.0

// Command make writes the loxilight image from the programs that make build has left in a
// directory; its arguments name the programs.
package main

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/loxilight/loxilight/tools/image"
)

// places are the directories that contain the programs in the image, which are the same as in the
// Debian package.
var places = map[string]string{
	"loxilightd":      "usr/sbin",
	"loxilight-agent": "usr/sbin",
	"llcli":           "usr/bin",
	"loxilight-cni":   "usr/lib/cni",
}

// Users of the containers, with the user ids that the chart also uses (users in values.yaml), and
// the groups of the daemon's sockets: loxilightd in a container finds them here.
const (
	passwd = "root:x:0:0:root:/:/nonexistent\n" +
		"loxilight-agent:x:64252:64251:loxilight-agent:/:/nonexistent\n" +
		"loxilight-cni:x:64253:64253:llcli cni keep:/:/nonexistent\n" +
		"loxilight-controller:x:64254:64254:loxilight-agent --controller:/:/nonexistent\n"
	group = "root:x:0:\n" +
		"loxilight:x:64250:loxilight-agent,loxilight-cni\n" +
		"loxilight-admin:x:64251:\n" +
		"loxilight-cni:x:64253:\n" +
		"loxilight-controller:x:64254:\n"
)

func main() {
	bin := flag.String("bin", "bin", "`FOLDER` with the programs")
	out := flag.String("o", "bin/loxilight-image.tar", "`FILE` that is written")
	version := flag.String("version", "unknown", "`VERSION` of the programs")
	revision := flag.String("revision", "", "`COMMIT` that they were built from")
	licence := flag.String("copyright", "debian/copyright", "`FILE` with the licences of all that is in the programs")
	flag.Parse()
	if err := write(*bin, *out, *version, *revision, *licence, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Println(*out)
}

func write(bin, out, version, revision, licence string, programs []string) error {
	when := time.Unix(0, 0)
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
		}
		when = time.Unix(seconds, 0)
	}
	i := image.Image{
		Tags:       []string{"loxilight:" + image.Tag(version), "loxilight:latest"},
		Entrypoint: []string{"/usr/sbin/loxilightd"},
		Labels: map[string]string{
			"org.opencontainers.image.title":       "loxilight",
			"org.opencontainers.image.description": "switch, router, load balancer and firewall in eBPF: daemon, CNI plugin and Kubernetes agent",
			"org.opencontainers.image.licenses":    "Apache-2.0 AND (GPL-2.0-only OR BSD-2-Clause)",
			"org.opencontainers.image.source":      "https://github.com/loxilight/loxilight",
			"org.opencontainers.image.version":     version,
		},
		Time: when,
	}
	if revision != "" {
		i.Labels["org.opencontainers.image.revision"] = revision
	}
	for _, p := range programs {
		place, known := places[p]
		if !known {
			return fmt.Errorf("%s: its folder in the image is unknown", p)
		}
		i.Files = append(i.Files, image.File{Path: path.Join(place, p), Mode: 0o755, Source: filepath.Join(bin, p)})
	}
	i.Files = append(i.Files,
		image.File{Path: "usr/share/doc/loxilight/copyright", Mode: 0o644, Source: licence},
		image.File{Path: "etc/passwd", Mode: 0o644, Text: passwd},
		image.File{Path: "etc/group", Mode: 0o644, Text: group},
		// Runtimes refer to pods' namespaces below /var/run.
		image.File{Path: "var/run", Link: "../run"},
	)
	for _, dir := range []string{"dev", "proc", "sys", "run/netns", "run/loxilight", "var/lib/loxilight", "etc/loxilight/conf.d", "etc/cni/net.d", "opt/cni/bin"} {
		i.Files = append(i.Files, image.File{Path: dir, Mode: fs.ModeDir | 0o755})
	}
	i.Files = append(i.Files, image.File{Path: "tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777})
	return i.WriteFile(out, runtime.GOARCH)
}
