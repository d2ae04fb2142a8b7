// SPDX-License-Identifier: Apache-2.0

package pods

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath"
	"github.com/loxilight/loxilight/loxilightd/internal/ipam"
)

// recordDir is the directory, within stateDir, that contains the records of interfaces.
const recordDir = "pods"

// record is the record of one of a pod's interfaces. It exists from before the first step of the
// interface's creation until everything has been removed.
type record struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	Name        string `json:"name"`    // name of the network configuration
	Network     string `json:"network"` // the PodNetwork
	Netns       string `json:"netns"`
	Boot        string `json:"boot"` // the machine's boot id
	Pod         string `json:"pod,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	UID         string `json:"uid,omitempty"` // of the pod
	Device      string `json:"device"`
	Object      string `json:"object"` // name of the Endpoint, and prefix of the names of related objects
	// Plugin is the IPAM plugin that assigned the addresses; nil: the daemon assigned them itself.
	Plugin *plugin `json:"plugin,omitempty"`

	Bridge    string           `json:"bridge,omitempty"`
	MAC       string           `json:"mac,omitempty"`
	MTU       int              `json:"mtu,omitempty"`
	RouteMTU  int              `json:"routeMTU,omitempty"` // for routes through a gateway that have no MTU of their own
	Addresses []netip.Prefix   `json:"addresses,omitempty"`
	Gateways  []netip.Addr     `json:"gateways,omitempty"` // one for each address; invalid: no gateway
	Routes    []route          `json:"routes,omitempty"`
	DNS       json.RawMessage  `json:"dns,omitempty"`
	Ports     []portMapping    `json:"ports,omitempty"`
	Ingress   datapath.PodRate `json:"ingress"`
	Egress    datapath.PodRate `json:"egress"`
	Done      bool             `json:"done,omitempty"` // success has been reported to the runtime
	// Rebuilt is set if the record was lost and has been rebuilt from other sources.
	Rebuilt bool `json:"rebuilt,omitempty"`
}

func (r *record) owner() ipam.Owner { return ipam.Owner{ContainerID: r.ContainerID, IfName: r.IfName} }

// objectName returns the name of the Endpoint of an interface. The name contains the pod's name, if
// known, and is always unique.
func objectName(o ipam.Owner, namespace, pod string) string {
	name := sumOf(o)[:10]
	if pod == "" {
		return name
	}
	head := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '/' {
			return c
		}
		return '-'
	}, strings.ToLower(namespace+"/"+pod))
	head = strings.Trim(head[:min(len(head), 200)], "-./")
	if head == "" {
		return name
	}
	return head + "/" + name
}

func sumOf(o ipam.Owner) string {
	sum := sha256.Sum256([]byte(o.String()))
	return hex.EncodeToString(sum[:16])
}

// link returns the link of the pod.
func (r *record) link() *datapath.PodLink {
	mac, _ := net.ParseMAC(r.MAC) // it was valid when it was written
	l := &datapath.PodLink{
		Device: r.Device, Bridge: r.Bridge, Netns: r.Netns, IfName: r.IfName, MAC: mac, MTU: r.MTU, RouteMTU: r.RouteMTU, Addresses: r.Addresses,
		Label: strings.Trim(r.Namespace+"/"+r.Pod, "/") + " " + r.owner().String(), Ingress: r.Ingress, Egress: r.Egress,
	}
	for _, x := range r.Routes {
		route := datapath.PodRoute{Prefix: x.Dst, MTU: x.MTU, AdvMSS: x.AdvMSS, Priority: x.Priority, Scope: x.Scope, Spare: x.spare}
		if x.GW != nil {
			route.Via = *x.GW
		}
		if x.Table != nil {
			route.Table = *x.Table
		}
		l.Routes = append(l.Routes, route)
	}
	return l
}

// keepRoutes records the routes with which the link was created.
func (r *record) keepRoutes(link *datapath.PodLink) {
	made, kept := link.Routes, r.Routes[:0]
	for _, x := range r.Routes {
		if len(made) > 0 && made[0].Prefix == x.Dst {
			x.MTU = made[0].MTU
			kept, made = append(kept, x), made[1:]
		}
	}
	r.Routes = kept
}

// endpoint returns the object whose source guard protects the pod's link.
func (r *record) endpoint() api.Object {
	spec := struct {
		Device      string   `json:"device"`
		Addresses   []string `json:"addresses,omitempty"`
		MAC         string   `json:"mac"`
		MTU         int      `json:"mtu,omitempty"`
		Namespace   string   `json:"namespace,omitempty"`
		Pod         string   `json:"pod,omitempty"`
		UID         string   `json:"uid,omitempty"`
		Netns       string   `json:"netns,omitempty"`
		ContainerID string   `json:"containerID,omitempty"`
		Network     string   `json:"network"`
	}{Device: r.Device, MAC: r.MAC, MTU: r.MTU, Namespace: r.Namespace, Pod: r.Pod, UID: r.UID, Netns: r.Netns, ContainerID: r.ContainerID, Network: r.Network}
	for _, a := range r.Addresses {
		spec.Addresses = append(spec.Addresses, a.Addr().String())
	}
	return object(kindEndpoint, r.Object, spec)
}

// kindEndpoint is the kind of the objects whose source guards protect pods.
const kindEndpoint = "Endpoint"

func object(kind, name string, spec any) api.Object {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return api.Object{Kind: kind, Name: name, Owner: api.OwnerCNI, Spec: text}
}

func (s *Server) recordPath(o ipam.Owner) string {
	return filepath.Join(s.StateDir, recordDir, sumOf(o)+".json")
}

// save writes a record. Only a record that contains an IPAM plugin must survive a power failure,
// because everything else is lost in that case anyway.
func (s *Server) save(r *record) error {
	dir := filepath.Join(s.StateDir, recordDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if r.Plugin != nil && err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), s.recordPath(r.owner()))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // useless
		return fmt.Errorf("save record of %s: %w", r.owner(), err)
	}
	return nil
}

func (s *Server) forget(r *record) error {
	err := os.Remove(s.recordPath(r.owner()))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete record of %s: %w", r.owner(), err)
	}
	s.dropDamaged(r.owner())
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods, r.owner())
	delete(s.missing, r.Object)
	if s.names[r.Device] == r.owner() {
		delete(s.names, r.Device)
	}
	return nil
}

// load reads the records of earlier runs. Unreadable records are set aside.
func (s *Server) load() ([]*record, error) {
	return loadRecords(s.StateDir, func(path string, cause error) error {
		s.Log.Error("the record of a pod cannot be read and is set aside", slog.String("file", path), slog.Any("error", cause))
		return os.Rename(path, path+damagedSuffix)
	})
}

// loadRecords reads all records and calls damaged for each unreadable record.
func loadRecords(stateDir string, damaged func(path string, cause error) error) (list []*record, err error) {
	dir := filepath.Join(stateDir, recordDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), ".new-") {
			_ = os.Remove(path) // unfinished
			continue
		}
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		r, err := readRecord(path)
		if err == nil {
			list = append(list, r)
		} else if err := damaged(path, err); err != nil {
			return nil, err
		}
	}
	return list, nil
}

func readRecord(path string) (*record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	r := &record{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	if filepath.Base(path) != sumOf(r.owner())+".json" || r.Device == "" || r.Object == "" || len(r.Gateways) != len(r.Addresses) {
		return nil, errors.New("the record is incomplete or does not match its file name")
	}
	return r, nil
}

// Leases returns pods' addresses according to their records, for use when no leases are stored.
func Leases(stateDir string) (list []ipam.Lease) {
	records, err := loadRecords(stateDir, func(string, error) error { return nil })
	if err != nil {
		return nil // at startup, the records are read again and the error is reported
	}
	for _, r := range records {
		if r.Plugin == nil && r.Done {
			list = append(list, ipam.Lease{Network: r.Network, Owner: r.owner(), Addresses: r.Addresses, Netns: r.Netns, Pod: podOf(r), Boot: r.Boot})
		}
	}
	return list
}
