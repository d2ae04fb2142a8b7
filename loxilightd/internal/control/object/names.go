// SPDX-License-Identifier: Apache-2.0

package object

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/loxilight/loxilight/api"
	"github.com/loxilight/loxilight/datapath/policy"
	"github.com/loxilight/loxilight/loxilightd/internal/control/decode"
)

// Limits on the names of hosts, without the dot at the end (RFC 1035, section 2.3.4).
const (
	maxHostName = 253
	maxLabel    = 63
)

// maxResolvers limits the DNS servers of a network.
const maxResolvers = 64

var labelPattern = regexp.MustCompile(`^[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?$`)

// ParseDNSName parses a DNS name in a rule, or *. and a name.
func ParseDNSName(text string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(text, "."))
	base := strings.TrimPrefix(name, "*.")
	switch _, err := netip.ParseAddr(base); {
	case err == nil:
		return "", errors.New("is an address: use prefixes")
	case base == "" || base == "*":
		return "", errors.New("matches every name: name at least one label, such as *.example.org, or omit the list of peers")
	case len(name) > maxHostName:
		return "", fmt.Errorf("has %d characters: a name has at most %d", len(name), maxHostName)
	}
	for label := range strings.SplitSeq(base, ".") {
		switch {
		case strings.Contains(label, "*"):
			return "", errors.New("has * in another place than in front: only *.NAME matches several names")
		case len(label) > maxLabel:
			return "", fmt.Errorf("has a label of %d characters: a label has at most %d", len(label), maxLabel)
		case !labelPattern.MatchString(label):
			return "", errors.New("is not a DNS name: labels consist of letters, digits, - and _; write other letters in their ASCII form, xn--…")
		}
	}
	return name, nil
}

// names parses the names of a peer.
func (p *policyParser) names(field string, s *api.PolicyPeer, d policy.Direction, action policy.Action) (peer policy.Peer, err *api.Error) {
	switch {
	case s.Set != "" || s.Namespaces != nil || s.Entities != nil || len(s.Prefixes)+len(s.Except) > 0:
		return peer, invalid(field+".names", "cannot be combined with prefixes or a selector of Entities: write two peers")
	case d != policy.Egress:
		return peer, invalid(field+".names", "is only for egress rules, because names are learnt from DNS responses to the subject: use prefixes")
	case action != policy.Allow:
		return peer, invalid(field+".names", "is only for rules with action allow, because a name may have addresses that are not learnt: allow the desired peers, and isolate egress")
	}
	before := firstTwice[string](len(s.Names))
	for i, text := range s.Names {
		at := fmt.Sprintf("%s.names[%d]", field, i)
		name, perr := ParseDNSName(text)
		if perr != nil {
			return peer, invalid(at, "%q %v", decode.Shorten(text), perr)
		}
		if first := before(i, name); first >= 0 {
			return peer, invalid(at, "%s duplicates names[%d]", name, first)
		}
		peer.Names = append(peer.Names, name)
	}
	return peer, nil
}

// parseResolvers parses the DNS servers of a network.
func parseResolvers(texts []string) (list []netip.Addr, err *api.Error) {
	if len(texts) > maxResolvers {
		return nil, invalid("spec.resolvers", "has %d addresses: at most %d are possible", len(texts), maxResolvers)
	}
	before := firstTwice[netip.Addr](len(texts))
	for i, text := range texts {
		field := fmt.Sprintf("spec.resolvers[%d]", i)
		a, perr := netip.ParseAddr(text)
		if perr != nil || a.Zone() != "" {
			return nil, invalid(field, "%q is not an address, such as 10.96.0.10 or 2001:db8::53", decode.Shorten(text))
		}
		a = a.Unmap()
		if perr := checkHost(a); perr != nil {
			return nil, invalid(field, "%s %v", a, perr)
		}
		if first := before(i, a); first >= 0 {
			return nil, invalid(field, "%s duplicates resolvers[%d]", a, first)
		}
		list = append(list, a)
	}
	return list, nil
}
