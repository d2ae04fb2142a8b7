// SPDX-License-Identifier: Apache-2.0

package object

import (
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// serviceMemory is the charge for a parsed frontend, backend or source range, in bytes.
const serviceMemory = 128

func parseService(s *api.ServiceSpec, b *decode.Budget) (state.Value, *api.Error) {
	v := &state.Service{}
	count := len(s.Frontends) + len(s.Backends) + len(s.SourceRanges)
	for i := range s.Divert {
		count += 1 + len(s.Divert[i].Sources)
	}
	if !b.TakeMemory(serviceMemory * count) {
		return nil, api.Errorf(api.ReasonCapacity, "%s", b.TooMuch()).At("", "spec")
	}
	for _, parse := range []func(*api.ServiceSpec, *state.Service) *api.Error{
		parseFrontends, parseBackends, parseChoice, parseRanges, parseHealth, parseIdle, parseDiverts, parseRest,
	} {
		if err := parse(s, v); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// firstTwice returns a function that returns the index at which key k occurred before, or -1 if it
// did not.
func firstTwice[K comparable](count int) func(i int, k K) int {
	seen := make(map[K]int, count)
	return func(i int, k K) int {
		if first, ok := seen[k]; ok {
			return first
		}
		seen[k] = i
		return -1
	}
}

func parseFrontends(s *api.ServiceSpec, v *state.Service) *api.Error {
	if len(s.Frontends) == 0 {
		return invalid("spec.frontends", "a service needs at least one, such as 192.0.2.1:80/tcp")
	}
	v.Frontends = make([]datapath.Frontend, len(s.Frontends))
	before := firstTwice[datapath.Frontend](len(s.Frontends))
	for i, text := range s.Frontends {
		field := func() string { return fmt.Sprintf("spec.frontends[%d]", i) }
		f, err := parseFrontend("", text)
		if err != nil {
			return err.At("", field())
		}
		if first := before(i, f); first >= 0 {
			return invalid(field(), "%s duplicates frontends[%d]", f, first)
		}
		v.Frontends[i] = f
	}
	return nil
}

func parseBackends(s *api.ServiceSpec, v *state.Service) *api.Error {
	v.Backends = make([]datapath.Backend, len(s.Backends))
	before := firstTwice[netip.AddrPort](len(s.Backends))
	for i := range s.Backends {
		b := &s.Backends[i]
		field := func(name string) string { return fmt.Sprintf("spec.backends[%d].%s", i, name) }
		addr, err := parseAddrPort(b.Address)
		if err != nil {
			return invalid(field("address"), "%q: %v; want address:port, such as 10.0.1.2:8080", decode.Shorten(b.Address), err)
		}
		if first := before(i, addr); first >= 0 {
			return invalid(field("address"), "%s duplicates backends[%d]", addr, first)
		}
		weight := 1
		if b.Weight != nil {
			weight = *b.Weight
		}
		if weight < 0 || weight > math.MaxUint16 {
			return invalid(field("weight"), "%d is not between 0 and %d", weight, math.MaxUint16)
		}
		st, aerr := choose("", b.State, api.BackendStates...)
		if aerr != nil {
			return aerr.At("", field("state"))
		}
		v.Backends[i] = datapath.Backend{Addr: addr, Weight: uint16(weight), State: datapath.BackendState(st)}
	}
	return nil
}

// admitService rejects backends that cannot be reached on any node.
func admitService(value state.Value) *api.Error {
	for i, b := range value.(*state.Service).Backends {
		if b.Addr.Addr().IsLoopback() {
			return invalid(fmt.Sprintf("spec.backends[%d].address", i),
				"%q: %s is a loopback address, to which the kernel delivers no packet from a device: "+
					"for a server on the node, set an address of one of its devices", b.Addr, b.Addr.Addr())
		}
	}
	return nil
}

func parseChoice(s *api.ServiceSpec, v *state.Service) *api.Error {
	algorithm, err := choose("spec.algorithm", s.Algorithm, api.Algorithms...)
	if err != nil {
		return err
	}
	source, err := choose("spec.source", s.Source, api.SourceModes...)
	if err != nil {
		return err
	}
	v.Algorithm, v.Source = datapath.Algorithm(algorithm), datapath.SourceMode(source)
	if s.Affinity == nil {
		return nil
	}
	t := time.Duration(s.Affinity.Timeout)
	if t < time.Second || t > 24*time.Hour || t%time.Second != 0 {
		return invalid("spec.affinity.timeout", "%s is not a number of whole seconds between 1s and 24h; omit affinity to turn it off", s.Affinity.Timeout)
	}
	v.Affinity = t
	return nil
}

func parseRanges(s *api.ServiceSpec, v *state.Service) (err *api.Error) {
	v.SourceRanges, err = parseClients(s.SourceRanges, "spec.sourceRanges", map[netip.Prefix]string{})
	return err
}

// parseClients parses the client prefixes in a field. A prefix must occur neither twice in the
// field nor in before, which maps each prefix to the field that contains it.
func parseClients(texts []string, name string, before map[netip.Prefix]string) (list []netip.Prefix, _ *api.Error) {
	for i, text := range texts {
		field := fmt.Sprintf("%s[%d]", name, i)
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			return nil, invalid(field, "%q is not a valid prefix: want address/length, such as 10.0.0.0/8 or 2001:db8::/32", decode.Shorten(text))
		case p.Addr().Is4In6():
			return nil, invalid(field, "%q is an IPv4-mapped IPv6 address: write it as IPv4", decode.Shorten(text))
		case p.Masked() != p:
			return nil, invalid(field, "%q has host bits set: write %s", decode.Shorten(text), p.Masked())
		}
		if first, ok := before[p]; ok {
			return nil, invalid(field, "%s duplicates %s", p, strings.TrimPrefix(first, "spec."))
		}
		before[p] = field
		list = append(list, p)
	}
	return list, nil
}

func parseDiverts(s *api.ServiceSpec, v *state.Service) (err *api.Error) {
	before := map[netip.Prefix]string{}
	for i := range s.Divert {
		spec := &s.Divert[i]
		field := func(name string) string { return fmt.Sprintf("spec.divert[%d].%s", i, name) }
		if len(spec.Sources) == 0 {
			return invalid(field("sources"), "is missing: set it to the prefixes of the clients, such as 10.0.0.0/8")
		}
		if len(spec.Service) > maxName || !namePattern.MatchString(spec.Service) {
			return invalid(field("service"), "%q is not a valid name of a Service", decode.Shorten(spec.Service))
		}
		d := datapath.Divert{Service: datapath.ServiceName(spec.Service)}
		if d.Sources, err = parseClients(spec.Sources, field("sources"), before); err != nil {
			return err
		}
		v.Diverts = append(v.Diverts, d)
	}
	return nil
}

// parseRest parses the options for the frontends' addresses and for connections without a
// backend.
func parseRest(s *api.ServiceSpec, v *state.Service) *api.Error {
	silent, err := choose("spec.noBackend", s.NoBackend, api.NoBackends...)
	if err != nil {
		return err
	}
	other, err := choose("spec.otherPorts", s.OtherPorts, api.OtherPorts...)
	if err != nil {
		return err
	}
	v.Silent, v.Announce = silent == 1, s.Announce
	v.OtherPorts = datapath.OtherPorts(other)
	if s.Announce && s.OtherPorts == "" {
		v.OtherPorts = datapath.OtherPortsReject
	}
	return nil
}

// Defaults of a health check.
const (
	defaultInterval  = 5 * time.Second
	defaultTimeout   = time.Second
	defaultHealthy   = 2
	defaultUnhealthy = 3
)

func parseHealth(s *api.ServiceSpec, v *state.Service) *api.Error {
	h := s.Health
	if h == nil {
		return nil
	}
	if h.Type == "" {
		return invalid("spec.health.type", "is missing: want one of %s", strings.Join(api.HealthTypes, ", "))
	}
	if _, err := choose("spec.health.type", h.Type, api.HealthTypes...); err != nil {
		return err
	}
	c := &state.HealthCheck{Type: h.Type}
	var err *api.Error
	if c.Path, err = healthPath(h); err != nil {
		return err
	}
	if h.Port < 0 || h.Port > math.MaxUint16 {
		return invalid("spec.health.port", "%d is not between 1 and %d", h.Port, math.MaxUint16)
	}
	if h.Type == "ping" && h.Port != 0 {
		return invalid("spec.health.port", "ping has no port")
	}
	c.Port = uint16(h.Port)
	if c.Interval, err = between("spec.health.interval", h.Interval, defaultInterval, 100*time.Millisecond, time.Hour); err != nil {
		return err
	}
	if c.Timeout, err = between("spec.health.timeout", h.Timeout, defaultTimeout, 10*time.Millisecond, time.Minute); err != nil {
		return err
	}
	if c.Healthy, err = count("spec.health.healthy", h.Healthy, defaultHealthy); err != nil {
		return err
	}
	if c.Unhealthy, err = count("spec.health.unhealthy", h.Unhealthy, defaultUnhealthy); err != nil {
		return err
	}
	v.Health = c
	return nil
}

// healthPath returns the path of an HTTP check; the path is empty for other types.
func healthPath(h *api.HealthCheck) (string, *api.Error) {
	web := h.Type == "http" || h.Type == "https"
	switch {
	case !web && h.Path != "":
		return "", invalid("spec.health.path", "health checks of type %s have no path", h.Type)
	case web && h.Path == "":
		return "/", nil
	case web && (h.Path[0] != '/' || strings.ContainsFunc(h.Path, func(r rune) bool { return r <= ' ' || r == 0x7f })):
		return "", invalid("spec.health.path", "%q is not a valid path: it must begin with / and contain no spaces", decode.Shorten(h.Path))
	}
	return h.Path, nil
}

func count(field string, n, otherwise int) (int, *api.Error) {
	if n == 0 {
		return otherwise, nil
	}
	if n < 1 || n > 100 {
		return 0, invalid(field, "%d is not between 1 and 100", n)
	}
	return n, nil
}

func parseIdle(s *api.ServiceSpec, v *state.Service) *api.Error {
	v.IdleTimeout = datapath.DefaultIdleTimeout()
	if s.IdleTimeout == nil {
		return nil
	}
	for _, t := range []struct {
		name string
		spec api.Duration
		to   *time.Duration
	}{
		{"tcp", s.IdleTimeout.TCP, &v.IdleTimeout.TCP},
		{"udp", s.IdleTimeout.UDP, &v.IdleTimeout.UDP},
		{"sctp", s.IdleTimeout.SCTP, &v.IdleTimeout.SCTP},
	} {
		d, err := between("spec.idleTimeout."+t.name, t.spec, *t.to, time.Second, 7*24*time.Hour)
		if err != nil {
			return err
		}
		*t.to = d
	}
	return nil
}
