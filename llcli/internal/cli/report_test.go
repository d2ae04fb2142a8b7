// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/llcli/internal/command"
)

// TestReportOnce: the reason why an object is not Ready is printed once, although the error
// contains it, too.
func TestReportOnce(t *testing.T) {
	err := api.Errorf(api.ReasonTimeout, `saved as revision 3, but 2 of 2 objects were not Ready after 1s; Peer/a: Pending: tunnel "nope": not there`)
	err.Data.NotReady = []api.NotReady{{Object: "Peer/a", State: api.StatePending, Message: `tunnel "nope": not there`}, {Object: "Peer/b", State: api.StatePending}}
	var errs strings.Builder
	report(command.New(command.Env{Err: &errs}), nil, err)
	const want = `llcli: saved as revision 3, but 2 of 2 objects were not Ready after 1s
  Peer/a is Pending: tunnel "nope": not there
  Peer/b is Pending
`
	if errs.String() != want {
		t.Errorf("got\n%swant\n%s", errs.String(), want)
	}
}
