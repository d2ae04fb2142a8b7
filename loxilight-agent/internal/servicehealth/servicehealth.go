// SPDX-License-Identifier: Apache-2.0

// Package servicehealth answers load balancers that ask a node for its endpoints of a service,
// each service at its healthCheckNodePort. It counts nothing itself.
package servicehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/loxilight/loxilight/loxilight-agent/internal/health"
	"github.com/loxilight/loxilight/loxilight-agent/internal/services"
)

// retryAfter is the time until a port that could not be opened is tried again.
const retryAfter = 5 * time.Second

// Server keeps the ports of all services open. Safe for concurrent use.
type Server struct {
	healthy func() bool
	failed  func(services.Key, error)
	log     *slog.Logger

	mu        sync.Mutex
	addresses []netip.Addr // that it listens on; everywhere: all
	services  map[services.Key]*service
	retry     *time.Timer
	closed    bool
}

// service is a service with a health check.
type service struct {
	health   services.Health
	server   *http.Server        // nil: its port is open on no address
	open     map[netip.Addr]bool // addresses that its port is open on
	reported string              // the last reported error from opening the port
}

// everywhere stands for all addresses of the node.
var everywhere = []netip.Addr{{}}

// New makes a server without services, which listens on all addresses. healthy reports whether the
// node forwards traffic for services. failed is called, without a lock held, with each port that
// cannot be opened on some addresses, once for each distinct error; the server retries by itself.
func New(healthy func() bool, failed func(services.Key, error), log *slog.Logger) *Server {
	return &Server{healthy: healthy, failed: failed, log: log, addresses: everywhere, services: map[services.Key]*service{}}
}

// SetAddresses sets the addresses of the node to listen on; without addresses, it listens on none.
// If the addresses change, ports are opened again.
func (s *Server) SetAddresses(addresses []netip.Addr) {
	s.change(func() {
		if slices.Equal(addresses, s.addresses) {
			return
		}
		s.addresses = slices.Clone(addresses)
		for _, sv := range s.services {
			s.shut(sv)
		}
	})
}

// Set sets the state of a service. If h is nil, the health check of the service is removed.
func (s *Server) Set(key services.Key, h *services.Health) {
	s.change(func() {
		sv := s.services[key]
		if h == nil || sv != nil && sv.health.Port != h.Port {
			s.shut(sv)
			delete(s.services, key)
			sv = nil
		}
		switch {
		case h == nil:
		case sv == nil:
			s.services[key] = &service{health: *h}
		default:
			sv.health = *h
		}
	})
}

// Close shuts all ports.
func (s *Server) Close() {
	s.change(func() {
		s.closed = true
		for _, sv := range s.services {
			s.shut(sv)
		}
	})
}

// change carries out a change under the lock, and then opens ports as necessary.
func (s *Server) change(f func()) {
	s.mu.Lock()
	f()
	problems := s.open()
	s.mu.Unlock()
	for key, err := range problems {
		s.failed(key, err)
	}
}

// open opens the ports that are not open, and schedules a retry of failed ones. It returns the
// errors to report.
func (s *Server) open() map[services.Key]error {
	if s.retry != nil {
		s.retry.Stop()
		s.retry = nil
	}
	if s.closed {
		return nil
	}
	problems, again := map[services.Key]error{}, false
	for key, sv := range s.services {
		problem := s.listen(key, sv)
		again = again || problem != ""
		if problem != "" && problem != sv.reported {
			problems[key] = fmt.Errorf("health check port %d: %s", sv.health.Port, problem)
		}
		sv.reported = problem
	}
	if again {
		s.retry = time.AfterFunc(retryAfter, func() { s.change(func() {}) })
	}
	return problems
}

// listen opens the port of a service on each possible address, and returns why it cannot be opened
// on the others: an address in the node's object need not belong to a device of the node.
func (s *Server) listen(key services.Key, sv *service) (problem string) {
	var problems []string
	for _, a := range s.addresses {
		if sv.open[a] {
			continue
		}
		host := ""
		if a.IsValid() {
			host = a.String()
		}
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(host, strconv.Itoa(int(sv.health.Port))))
		if err != nil {
			problems = append(problems, err.Error())
			continue
		}
		s.serve(key, sv, l)
		sv.open[a] = true
	}
	return strings.Join(problems, "; ")
}

// serve answers requests about a service on a listener.
func (s *Server) serve(key services.Key, sv *service, l net.Listener) {
	if sv.server == nil {
		sv.open = map[netip.Addr]bool{}
		answer := func(w http.ResponseWriter, _ *http.Request) { s.answer(w, key) }
		sv.server = health.NewServer(http.HandlerFunc(answer), s.log)
	}
	go func(server *http.Server) {
		if err := server.Serve(health.Bound(l, health.MaxConnections)); !errors.Is(err, http.ErrServerClosed) {
			s.log.Warn("health check of a service ended", "service", key.String(), "error", err)
		}
	}(sv.server)
}

// shut closes the port of a service; sv may be nil.
func (s *Server) shut(sv *service) {
	if sv == nil || sv.server == nil {
		return
	}
	_ = sv.server.Close() // its listeners may be closed already
	sv.server, sv.open = nil, nil
}

// answerBody is the answer to a load balancer.
type answerBody struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

func (s *Server) answer(w http.ResponseWriter, key services.Key) {
	var body answerBody
	body.Service.Namespace, body.Service.Name = key.Namespace, key.Name
	s.mu.Lock()
	if sv := s.services[key]; sv != nil {
		body.LocalEndpoints = sv.health.Local
	}
	s.mu.Unlock()
	body.ServiceProxyHealthy = s.healthy()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(body.LocalEndpoints))
	if body.LocalEndpoints == 0 || !body.ServiceProxyHealthy {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(&body) // the client may be gone
}
