// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/internal/testdaemon"
)

// TestTimeNamespace runs the daemon in a time namespace that is a day ahead, while the programs
// have the time of the machine. This does not make connections expire.
func TestTimeNamespace(t *testing.T) {
	s := newSite(t)
	ahead := programs
	ahead.Daemon = filepath.Join(t.TempDir(), "ahead")
	script := fmt.Sprintf("#!/bin/sh\nexec unshare --time --monotonic 86400 --boottime 86400 --fork --kill-child=TERM %s \"$@\"\n", programs.Daemon)
	if err := os.WriteFile(ahead.Daemon, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	s.Daemon = testdaemon.New(t, s.node, ahead, siteTables, "datapath: {sweepInterval: 250ms}")
	s.start()
	s.backends[0].ServeTCP(t, "10.0.1.2:9000", "b1")
	s.LLCLI("service", "add", "web", "--frontend", vip4+":80/tcp", "--backend", "10.0.1.2:9000", "--wait", "10s")
	c, err := s.client.Dial("tcp", "", vip4+":80", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // has nothing unsent
	for range 30 {  // the time of some ten sweeps
		_ = c.SetDeadline(time.Now().Add(patience)) // a later call fails otherwise
		_, err := c.Write([]byte("x"))
		if err == nil {
			_, err = c.Read(make([]byte, 100))
		}
		if err != nil {
			t.Fatalf("the connection ended: %v", err)
		}
		if n := len(s.Connections(api.ConnectionFilter{Protocol: "tcp"})); n != 1 {
			t.Fatalf("%d connections, want 1", n)
		}
		time.Sleep(100 * time.Millisecond) // until the next check
	}
}
