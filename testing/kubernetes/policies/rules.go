package main

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
)

const (
	// Where packets come from FORWARD and INPUT.
	entry = "POLICIES"
	// What the names of all other chains begin with.
	prefix = "POLICY-"
	// A packet with this mark is allowed by a rule.
	allow = "-j MARK --set-xmark 0x10000/0x10000"
)

// A rule set: chains, and what is appended to them, as iptables-restore takes it.
type rules struct {
	chains []string
	lines  []string
}

func (r *rules) add(chain string, parts ...string) {
	r.lines = append(r.lines, strings.Join(append([]string{"-A", chain}, parts...), " "))
}

// chain is the chain whose name stands for a text, and whether it is new.
func (r *rules) chain(text string) (string, bool) {
	name := prefix + fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16]
	if slices.Contains(r.chains, name) {
		return name, false
	}
	r.chains = append(r.chains, name)
	return name, true
}

// A direction as seen from the confined pod: the match for its own address, and for that of its peers.
type direction struct {
	kind networking.PolicyType
	own  string
	peer string
}

var (
	egress  = direction{networking.PolicyTypeEgress, "-s", "-d"}
	ingress = direction{networking.PolicyTypeIngress, "-d", "-s"}
)

// A rule of a policy in either direction.
type rule struct {
	peers []networking.NetworkPolicyPeer
	ports []networking.NetworkPolicyPort
}

func (d direction) rulesOf(policy *networking.NetworkPolicy) []rule {
	var all []rule
	if d.kind == networking.PolicyTypeEgress {
		for _, each := range policy.Spec.Egress {
			all = append(all, rule{each.To, each.Ports})
		}
	} else {
		for _, each := range policy.Spec.Ingress {
			all = append(all, rule{each.From, each.Ports})
		}
	}
	return all
}

// rules translates the policies for the node's pods. A connection passes that of its sender, and then that of its
// receiver; answers pass.
func (w *world) rules() *rules {
	set := &rules{chains: []string{entry}}
	set.add(entry, "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN")
	for _, d := range []direction{egress, ingress} {
		for _, pod := range w.pods {
			if pod.Spec.NodeName == w.node {
				w.confine(set, pod, d)
			}
		}
	}
	return set
}

func (w *world) confine(set *rules, pod *core.Pod, d direction) {
	policies := w.of(pod, d.kind)
	if len(policies) == 0 {
		return
	}
	chain, _ := set.chain(fmt.Sprintf("%s %s", d.kind, pod.UID))
	set.add(entry, d.own, pod.Status.PodIP, "-j", chain)
	set.add(chain, "-j MARK --set-xmark 0x0/0x10000")
	for _, policy := range policies {
		for _, rule := range d.rulesOf(policy) {
			w.allow(set, chain, pod, d, policy.Namespace, rule)
		}
	}
	set.add(chain, "-m mark ! --mark 0x10000/0x10000 -j DROP")
}

func (w *world) allow(set *rules, chain string, pod *core.Pod, d direction, namespace string, rule rule) {
	if len(rule.peers) == 0 {
		for _, port := range ports(rule.ports, receiver(d, pod, nil)) {
			set.add(chain, port, allow)
		}
	}
	for index := range rule.peers {
		peer := &rule.peers[index]
		if peer.IPBlock != nil {
			// The rules are those of the packet filter for IPv4, which refuses them all if one is not.
			if strings.Contains(peer.IPBlock.CIDR, ":") {
				continue
			}
			block := block(set, d, peer.IPBlock)
			for _, port := range ports(rule.ports, receiver(d, pod, nil)) {
				set.add(chain, d.peer, peer.IPBlock.CIDR, port, block)
			}
			continue
		}
		for _, other := range w.podsOf(namespace, peer) {
			for _, port := range ports(rule.ports, receiver(d, pod, other)) {
				set.add(chain, d.peer, other.Status.PodIP, port, allow)
			}
		}
	}
}

// block is what happens to a packet of a block of addresses: some may be excepted.
func block(set *rules, d direction, block *networking.IPBlock) string {
	if len(block.Except) == 0 {
		return allow
	}
	chain, isNew := set.chain(fmt.Sprintf("%s %v", d.kind, *block))
	if !isNew {
		return "-j " + chain
	}
	for _, except := range block.Except {
		set.add(chain, d.peer, except, "-j RETURN")
	}
	set.add(chain, allow)
	return "-j " + chain
}

// receiver is the pod whose ports a rule may name.
func receiver(d direction, pod, other *core.Pod) *core.Pod {
	if d.kind == networking.PolicyTypeIngress {
		return pod
	}
	return other
}

// ports is the matches for the ports of a rule; without any, all.
func ports(wanted []networking.NetworkPolicyPort, receiver *core.Pod) []string {
	if len(wanted) == 0 {
		return []string{""}
	}
	var found []string
	for _, port := range wanted {
		protocol := core.ProtocolTCP
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		match := "-p " + strings.ToLower(string(protocol))
		switch {
		case port.Port == nil:
			found = append(found, match)
		case port.Port.StrVal != "":
			for _, number := range named(receiver, port.Port.StrVal, protocol) {
				found = append(found, fmt.Sprintf("%s --dport %d", match, number))
			}
		case port.EndPort != nil:
			found = append(found, fmt.Sprintf("%s --dport %d:%d", match, port.Port.IntVal, *port.EndPort))
		default:
			found = append(found, fmt.Sprintf("%s --dport %d", match, port.Port.IntVal))
		}
	}
	return found
}

func named(pod *core.Pod, name string, protocol core.Protocol) []int32 {
	if pod == nil {
		return nil
	}
	var numbers []int32
	for _, container := range pod.Spec.Containers {
		for _, port := range container.Ports {
			if port.Name == name && port.Protocol == protocol {
				numbers = append(numbers, port.ContainerPort)
			}
		}
	}
	return numbers
}
