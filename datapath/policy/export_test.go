// SPDX-License-Identifier: Apache-2.0

package policy

// SetSpare sets how many terms without users stay before terms get new numbers.
func (c *Compiler) SetSpare(n int) { c.spare = n }

// Uses returns how many values of each kind are in use.
func (c *Compiler) Uses() map[string]int {
	return map[string]int{
		"classes": c.classes.used(), "tables": c.tables.used(), "rows": c.rows.used(), "cells": c.cells.used(),
		"terms": len(c.terms.ids), "names": len(c.names),
	}
}

func (p *pool[V]) used() (n int) {
	p.each(func(int, *V) { n++ })
	return n
}

// EndsOf returns all ends that [Differences] compares.
func EndsOf(before, after *State) map[End]bool {
	c := comparison{states: [2]*Compiler{NewCompiler(), NewCompiler()}}
	c.states[0].Apply(before)
	c.states[1].Apply(after)
	all := make(map[End]bool)
	for _, g := range c.groups() {
		for _, e := range g.ends {
			all[e] = true
		}
	}
	return all
}
