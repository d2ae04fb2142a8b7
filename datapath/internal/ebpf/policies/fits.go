// SPDX-License-Identifier: Apache-2.0

package policies

import "github.com/loxilight/loxilight/datapath/policy"

// Fits implements [datapath.PolicyTable]. It lays out the tables in memory of the process.
func (p *Policies) Fits(s *policy.State) error {
	m, err := newMemory(nil, nil, 0)
	if err != nil {
		return err
	}
	image := newImage(m)
	image.numberOf = func(policy.Verdict, bool) (uint32, error) { return 0, nil }
	change := policy.NewCompiler().Apply(s)
	if err := image.write(change); err != nil {
		return err
	}
	return image.writeSide(1, 0, change)
}
