// SPDX-License-Identifier: Apache-2.0

// Package security contains the attacks that loxilight must withstand, against the real daemon and
// the real data plane, in network namespaces. Each test names the finding that it closes: TestS1…
// to TestS19….
package security

import (
	"os"
	"testing"

	"github.com/loxilight/loxilight/internal/testdaemon"
)

var programs testdaemon.Programs

func TestMain(m *testing.M) {
	if socket := os.Getenv(commitsEnv); socket != "" { // started by beside
		os.Exit(commits(socket))
	}
	os.Exit(testdaemon.Main(m, "security", &programs))
}
