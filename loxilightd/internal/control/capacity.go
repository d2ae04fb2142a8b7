// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/internal/memory"
	"github.com/loxilight/loxilight/loxilightd/internal/control/capacity"
	"github.com/loxilight/loxilight/loxilightd/internal/state"
)

// Limits on a reply to capacity: on the owners of each kind, and on the address pools.
const (
	mostOwners = 100
	mostPools  = 500
)

// The units of tables and resources.
const (
	unitEntries = "entries"
	unitBytes   = "bytes"
)

// filling follows how full the tables are. It is safe for concurrent use.
type filling struct {
	history capacity.History
	warned  map[string]bool // tables that events reported as filling; used by followUsage only

	counting chan struct{} // has an element while connections are counted, and while the fields below are used
	tally    *capacity.Tally
	err      error // of the last count
	counted  time.Time
	took     time.Duration
}

// capacity answers the method capacity.
func (s *Server) capacity(ctx context.Context, _ Caller, p *api.CapacityParams) (any, *api.Error) {
	if p.Owners < 0 || p.Owners > mostOwners {
		return nil, invalid("owners", "%d is not from 0 to %d", p.Owners, mostOwners)
	}
	usage, err := s.usage(ctx)
	if err != nil {
		return nil, planeError(err)
	}
	s.setNeeded(usage)
	leaveOutPools(usage)
	now := time.Now()
	result := &api.CapacityResult{}
	for table, u := range usage {
		result.Tables = append(result.Tables, s.tableCapacity(table, unitEntries, u, now))
	}
	for resource, u := range s.resources() {
		unit := unitBytes
		if resource == "descriptors" {
			unit = unitEntries
		}
		result.Tables = append(result.Tables, s.tableCapacity(resource, unit, u, now))
	}
	if p.Owners > 0 {
		if err := s.addOwners(ctx, result, p.Owners); err != nil {
			return nil, planeError(err)
		}
	}
	slices.SortFunc(result.Tables, func(a, b api.TableCapacity) int { return strings.Compare(a.Name, b.Name) })
	return result, nil
}

// usage returns how full every table and pool is.
func (s *Server) usage(ctx context.Context) (map[string]datapath.Usage, error) {
	usage, err := s.Plane.Telemetry().Usage(ctx)
	if err != nil {
		return nil, err
	}
	usage = s.withRules(usage, s.Store.Snapshot().Cost())
	s.withPools(usage)
	return usage, nil
}

// setNeeded sets the usage of the tables that objects fill to what the objects need, in force or not:
// changes are accepted or refused by this number.
func (s *Server) setNeeded(usage map[string]datapath.Usage) {
	for table, n := range costs(s.Store.Snapshot().Cost()) {
		usage[table] = datapath.Usage{Used: uint64(n), Size: usage[table].Size}
	}
}

// resources returns how much is used of the resources that the daemon shares with others: of the
// disk that stores the desired state, of the memory that this process may use, both in bytes, and of
// its file descriptors.
func (s *Server) resources() map[string]datapath.Usage {
	all := make(map[string]datapath.Usage)
	var disk unix.Statfs_t
	if unix.Statfs(s.StateDir, &disk) == nil {
		block := uint64(cmp.Or(disk.Frsize, disk.Bsize))
		all["disk"] = datapath.Usage{Used: (disk.Blocks - min(disk.Blocks, disk.Bfree)) * block, Size: disk.Blocks * block}
	}
	if used, size := memory.Usage(); size > 0 {
		all["memory"] = datapath.Usage{Used: used, Size: size}
	}
	var limit unix.Rlimit
	open, err := os.ReadDir("/proc/self/fd")
	if err == nil && unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		all["descriptors"] = datapath.Usage{Used: uint64(len(open)), Size: limit.Cur}
	}
	return all
}

// leaveOutPools leaves only the fullest address pools, if there are more than fit in a reply.
func leaveOutPools(usage map[string]datapath.Usage) {
	pools := slices.DeleteFunc(slices.Collect(maps.Keys(usage)), func(table string) bool { return !isPool(table) })
	if len(pools) <= mostPools {
		return
	}
	free := func(pool string) uint64 { return usage[pool].Size - min(usage[pool].Used, usage[pool].Size) }
	slices.SortFunc(pools, func(a, b string) int { return cmp.Compare(free(a), free(b)) })
	for _, pool := range pools[mostPools:] {
		delete(usage, pool)
	}
}

func (s *Server) tableCapacity(table, unit string, u datapath.Usage, now time.Time) api.TableCapacity {
	c := api.TableCapacity{Name: table, Unit: unit, Usage: api.Usage(u), Setting: api.SettingOf(table)}
	h := &s.filling.history
	if n, ok := h.Growth(table, u, now, capacity.Short); ok {
		c.Growth5m = &n
	}
	if n, ok := h.Growth(table, u, now, capacity.Long); ok {
		c.Growth1h = &n
	}
	if left, ok := h.FullIn(table, u, now); ok {
		rounded := api.Duration(left.Round(time.Second))
		c.FullIn = &rounded
	}
	return c
}

// addOwners adds the largest owners of each table, and the use of source ports.
func (s *Server) addOwners(ctx context.Context, r *api.CapacityResult, n int) error {
	tally, err := s.tally(ctx)
	if err != nil {
		return err
	}
	u, nat := tally.SourcePorts()
	ports := api.TableCapacity{Name: capacity.SourcePorts, Unit: unitEntries, Usage: api.Usage(u)}
	if v := s.natOf(nat); v != nil && len(v.Addresses) > 0 {
		ports.Setting = "NAT spec.to.addresses"
	}
	r.Tables = append(r.Tables, ports)
	objects := costsByTable(s.Store.Snapshot())
	for i := range r.Tables {
		t := &r.Tables[i]
		t.Owners = append(tally.Owners(t.Name, n), capacity.Objects(objects[t.Name], n)...)
	}
	return nil
}

// natOf returns the NAT object with the given name, or nil if it does not exist.
func (s *Server) natOf(name datapath.NATName) *state.NAT {
	if o, ok := s.Store.Snapshot().Get(state.Key{Kind: state.KindNAT, Name: string(name)}); ok {
		return o.Value.(*state.NAT)
	}
	return nil
}

// sourcePorts returns how many source ports a NAT assigns for each remote address, if all are those
// that Services and NATs without ports of their own assign; 0: it keeps the ports, or they belong to
// mappings or port blocks, which have tables of their own.
func (s *Server) sourcePorts(name datapath.NATName, all int) (n int) {
	v := s.natOf(name)
	switch {
	case v == nil: // a Service, a PodNetwork, or a NAT that was deleted
		return all
	case v.Type == datapath.DNAT || v.OneToOne || v.BlockSize > 0 || v.Mapping == datapath.EndpointIndependent:
		return 0
	case len(v.Ports) == 0:
		return all
	}
	for _, p := range v.Ports {
		n += int(p.Last-p.First) + 1
	}
	return n
}

// tally counts the connections and the entries of other tables by their owners. One count serves all
// who ask within some time, and does not end early if a client disconnects: otherwise such clients
// could make the daemon count all the time.
func (s *Server) tally(ctx context.Context) (*capacity.Tally, error) {
	f := &s.filling
	select {
	case f.counting <- struct{}{}:
		defer func() { <-f.counting }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if time.Since(f.counted) < capacity.Age(f.took) {
		return f.tally, f.err
	}
	began := time.Now()
	f.tally, f.err = s.countOwners(context.WithoutCancel(ctx))
	f.counted, f.took = time.Now(), time.Since(began)
	return f.tally, f.err
}

func (s *Server) countOwners(ctx context.Context) (*capacity.Tally, error) {
	features, err := s.Plane.Telemetry().Features(ctx)
	if err != nil {
		return nil, err
	}
	t := capacity.NewTally(func(nat datapath.NATName) int { return s.sourcePorts(nat, features.SourcePorts) })
	endpoints := s.pods.at(s.Store.Snapshot())
	err = s.Plane.Connections().Each(ctx, func(c *datapath.Connection) {
		name := ""
		if o := endpoints[c.Original.Source.Addr().Unmap()]; o != nil {
			name = o.Name
		}
		t.Add(c, name)
	})
	return t, errors.Join(err, s.Plane.Telemetry().Owners(ctx, t.AddEntries))
}

// costsByTable returns, for each table that objects fill, how much of it each object needs.
func costsByTable(snapshot *state.Snapshot) map[string]map[string]uint64 {
	all := make(map[string]map[string]uint64)
	snapshot.Costs(func(k state.Key, c datapath.Cost) {
		for table, n := range costs(c) {
			if n == 0 {
				continue
			}
			if all[table] == nil {
				all[table] = make(map[string]uint64)
			}
			all[table][k.String()] = uint64(n)
		}
	})
	return all
}

// costs returns how many entries of each table objects need.
func costs(c datapath.Cost) map[string]int {
	return map[string]int{
		"services": c.Frontends, "backends": c.Backends, "ranges": c.Ranges,
		"rules": c.Rules, "prefixes": c.Prefixes,
	}
}

// followUsage records how full the tables are each minute, and publishes when one begins to fill up,
// and when it no longer does.
func (s *Server) followUsage(ctx context.Context) {
	s.filling.warned = make(map[string]bool)
	tick := time.NewTicker(capacity.Interval)
	defer tick.Stop()
	for failed := false; ; {
		usage, err := s.usage(ctx)
		switch {
		case err == nil:
			s.recordUsage(time.Now(), usage)
		case !failed && ctx.Err() == nil:
			s.Log.Warn("cannot read how full the tables are; trying again", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Server) recordUsage(now time.Time, usage map[string]datapath.Usage) {
	f := &s.filling
	full := s.fullTables(usage, now)
	for table, message := range full {
		if !f.warned[table] {
			f.warned[table] = true
			s.publish(api.TopicStatus, &api.StatusEvent{Kind: api.EventTable, Name: table, State: api.TableFilling, Message: message})
		}
	}
	for table := range f.warned {
		if _, still := full[table]; !still {
			delete(f.warned, table)
			s.publish(api.TopicStatus, &api.StatusEvent{Kind: api.EventTable, Name: table, State: api.TableOK})
		}
	}
	all := s.resources()
	maps.Copy(all, usage)
	s.setNeeded(all)
	f.history.Add(now, all)
}

// fullTables returns, for each table and pool that is full, nearly full or about to be, a message.
func (s *Server) fullTables(usage map[string]datapath.Usage, now time.Time) map[string]string {
	m := make(map[string]string)
	for table, u := range usage {
		left, fills := s.filling.history.Fills(table, u, now)
		switch {
		case !fills:
		case left > 0:
			m[table] = fmt.Sprintf("table %s will be full in %s if growth continues as in the last 5 minutes: %d of %d used; see llcli capacity",
				table, left.Round(time.Second), u.Used, u.Size)
		case isPool(table):
			m[table] = fmt.Sprintf("%s are nearly exhausted: pods have %d of %d; see llcli get podaddresses", table, u.Used, u.Size)
		case u.Used >= u.Size:
			m[table] = fmt.Sprintf("table %s is full: %d of %d entries used", table, u.Used, u.Size)
		default:
			m[table] = fmt.Sprintf("table %s is nearly full: %d of %d entries used", table, u.Used, u.Size)
		}
	}
	return m
}

// sortedMessages returns the messages in the order of their keys.
func sortedMessages(m map[string]string) (list []string) {
	for _, table := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[table])
	}
	return list
}
