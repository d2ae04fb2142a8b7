// SPDX-License-Identifier: Apache-2.0

package pin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"github.com/loxilight/loxilight/datapath"
)

// A map is pinned under its name. While its entries move to a map of a different layout or size,
// the new map is pinned beside it, under the name and a generation number: earlier programs use the
// old map, programs of this run the new one. Once all programs are this run's, the new map is
// renamed to the plain name. An interrupted run leaves several maps; the next run, of any version,
// continues with the newest that it can use.
const generationMark = "__"

// generation is one of the maps pinned for a name, with its comparison.
type generation struct {
	path   string
	number int
	m      *ebpf.Map
	grown  bool // a connection table with several segments
	comparison
}

// generations are the generations of one name, newest first.
type generations []generation

func openGenerations(dir string, spec *ebpf.MapSpec) (all generations, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			all.close()
			all = nil
		}
	}()
	for _, e := range entries {
		name, number, ok := SplitGeneration(e.Name())
		if !ok || name != spec.Name {
			continue
		}
		g := generation{path: filepath.Join(dir, e.Name()), number: number}
		if g.m, err = ebpf.LoadPinnedMap(g.path, nil); err != nil {
			return all, fmt.Errorf("open the pin %s: %w", g.path, err)
		}
		all = append(all, g)
		if all[len(all)-1].grown, err = keepSegments(g.m, spec); err != nil {
			return all, fmt.Errorf("the pin %s: %w", g.path, err)
		}
	}
	for i := range all {
		all[i].comparison = compareMap(all[i].m, spec)
	}
	slices.SortFunc(all, func(a, b generation) int { return b.number - a.number })
	return all, nil
}

// SplitGeneration splits the name of a pin into map name and generation number.
func SplitGeneration(pin string) (name string, number int, ok bool) {
	name, suffix, marked := strings.Cut(pin, generationMark)
	if !marked {
		return name, 0, true
	}
	number, err := strconv.Atoi(suffix)
	return name, number, err == nil
}

func (all generations) close() {
	for _, g := range all {
		g.m.Close() // only closes a file descriptor
	}
}

// choose returns the index of the newest generation with which this run can continue, or -1, and
// the comparison for the name as a whole.
func (all generations) choose() (int, comparison) {
	if i := slices.IndexFunc(all, func(g generation) bool { return g.shortage != nil }); i >= 0 {
		return -1, all[i].comparison
	}
	i := slices.IndexFunc(all, func(g generation) bool { return g.action == datapath.PinsAdopt })
	switch {
	case i < 0:
		return i, all[0].comparison
	case len(all) > 1:
		return i, comparison{action: datapath.PinsConvert, reason: "an earlier conversion is incomplete"}
	}
	return i, all[i].comparison
}
