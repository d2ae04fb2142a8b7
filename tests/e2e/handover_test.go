// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// TestFrontendsChangeHands: while frontends move between Services, three in each transaction, each
// frontend always has an owner, and afterwards its new owner.
func TestFrontendsChangeHands(t *testing.T) {
	eachFamily(t, func(t *testing.T, family, vip string) {
		s, backends := site3(t, family)
		fronts := make([]string, len(backends))
		for i := range fronts {
			fronts[i] = fmt.Sprintf("%s:%d", vip, 9000+i)
		}
		around := func(turn int) string {
			var all strings.Builder
			for i, b := range backends {
				front := fronts[(i+turn)%len(fronts)]
				all.WriteString(serviceYAML("web-"+string(rune('a'+i)), []string{front + "/tcp", front + "/udp"}, []string{b}, "otherPorts: reject"))
			}
			return all.String()
		}
		s.Apply(around(0))

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var clients sync.WaitGroup
		for _, front := range fronts {
			clients.Go(func() {
				for ctx.Err() == nil {
					if _, err := talkTCP(s.client, "", front, nil); err != nil {
						t.Errorf("a new connection to %s: %v", front, err)
					}
					if err := s.newUDP(front); err != nil {
						t.Errorf("a new client of %s by UDP: %v", front, err)
					}
				}
			})
		}
		const turns = 40
		for turn := 1; turn <= turns; turn++ {
			s.LLCLI("apply", "--wait", "5s", "-f", s.File(around(turn)))
		}
		cancel()
		clients.Wait()
		for i := range backends {
			front := fronts[(i+turns)%len(fronts)]
			if name, err := talkTCP(s.client, "", front, nil); err != nil || name != fmt.Sprintf("b%d", i+1) {
				t.Errorf("%s is served by %q, %v; want b%d", front, name, err, i+1)
			}
		}
	})
}

// newUDP sends a request as a new UDP client, and repeats it if no answer arrives: a request may be
// in flight when the frontend moves to a different Service, which ends the frontend's connections.
// A frontend without an owner is an immediate error.
func (s *site) newUDP(front string) error {
	conn, err := s.client.Dial("udp", "", front, patience)
	if err != nil {
		return err
	}
	defer conn.Close()
	for range 15 { // 0.3 s each
		if _, err = s.quickUDP(conn); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return err
}
