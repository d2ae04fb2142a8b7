// SPDX-License-Identifier: Apache-2.0

package model

// decided is what the firewall said about a connection's first packet.
type decided struct{}

// mapping is an inner address of endpoint-independent translation.
type mapping struct{}

func (o *oracle) filtered(in int, p *pkt) (verdict, bool) { return verdict{}, false }

func (o *oracle) asked(in int, p *pkt, d *direction) (verdict, bool) { return verdict{}, false }

func (o *oracle) translate(in int, p *pkt) verdict { return o.plain(p) }
