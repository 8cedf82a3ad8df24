package main

import (
	"slices"
	"strings"
	"testing"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(namespace, name, node, address string) *core.Pod {
	return &core.Pod{
		ObjectMeta: meta.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec: core.PodSpec{NodeName: node, Containers: []core.Container{{
			Ports: []core.ContainerPort{{Name: "web", ContainerPort: 8080, Protocol: core.ProtocolTCP}},
		}}},
		Status: core.PodStatus{PodIP: address},
	}
}

func app(name string) *meta.LabelSelector {
	return &meta.LabelSelector{MatchLabels: map[string]string{"app": name}}
}

// lines is what the pod `own` of node-1 may do under a policy, without what all chains begin and end with.
func lines(t *testing.T, spec networking.NetworkPolicySpec) []string {
	t.Helper()
	spec.PodSelector = *app("own")
	w := &world{
		node: "node-1",
		pods: []*core.Pod{
			pod("space", "own", "node-1", "10.0.1.1"), pod("space", "near", "node-1", "10.0.1.2"),
			pod("other", "far", "node-2", "10.0.2.1"),
		},
		namespaces: map[string]labels.Set{"space": {"name": "space"}, "other": {"name": "other"}},
		policies: []*networking.NetworkPolicy{
			{ObjectMeta: meta.ObjectMeta{Namespace: "space", Name: "policy"}, Spec: spec},
		},
	}
	var found []string
	for _, line := range w.rules().lines {
		if !strings.HasPrefix(line, "-A "+entry) && !strings.HasSuffix(line, "-j DROP") && !strings.Contains(line, "0x0/") {
			words := strings.Fields(line)
			found = append(found, strings.Join(words[2:], " "))
		}
	}
	return found
}

func TestRules(t *testing.T) {
	udp, last := core.ProtocolUDP, int32(90)
	number, name := intstr.FromInt32(80), intstr.FromString("web")
	in := func(rule networking.NetworkPolicyIngressRule) networking.NetworkPolicySpec {
		return networking.NetworkPolicySpec{
			PolicyTypes: []networking.PolicyType{networking.PolicyTypeIngress},
			Ingress:     []networking.NetworkPolicyIngressRule{rule},
		}
	}
	out := func(rule networking.NetworkPolicyEgressRule) networking.NetworkPolicySpec {
		return networking.NetworkPolicySpec{
			PolicyTypes: []networking.PolicyType{networking.PolicyTypeEgress},
			Egress:      []networking.NetworkPolicyEgressRule{rule},
		}
	}
	for what, each := range map[string]struct {
		spec   networking.NetworkPolicySpec
		wanted []string
	}{
		"nothing is allowed": {networking.NetworkPolicySpec{
			PolicyTypes: []networking.PolicyType{networking.PolicyTypeIngress, networking.PolicyTypeEgress},
		}, nil},
		"an empty rule allows all": {in(networking.NetworkPolicyIngressRule{}), []string{allow}},
		"a pod of the namespace": {in(networking.NetworkPolicyIngressRule{
			From: []networking.NetworkPolicyPeer{{PodSelector: app("near")}},
		}), []string{"-s 10.0.1.2 " + allow}},
		"a pod of another namespace is not meant": {in(networking.NetworkPolicyIngressRule{
			From: []networking.NetworkPolicyPeer{{PodSelector: app("far")}},
		}), nil},
		"a namespace, with ports of the receiver by name": {in(networking.NetworkPolicyIngressRule{
			From: []networking.NetworkPolicyPeer{{
				NamespaceSelector: &meta.LabelSelector{MatchLabels: map[string]string{"name": "other"}},
			}},
			Ports: []networking.NetworkPolicyPort{{Port: &name}, {Port: &number, EndPort: &last, Protocol: &udp}},
		}), []string{"-s 10.0.2.1 -p tcp --dport 8080 " + allow, "-s 10.0.2.1 -p udp --dport 80:90 " + allow}},
		"addresses with exceptions": {out(networking.NetworkPolicyEgressRule{
			To: []networking.NetworkPolicyPeer{{
				IPBlock: &networking.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"10.0.0.0/8"}},
			}},
		}), []string{"-d 10.0.0.0/8 -j RETURN", allow, "-d 0.0.0.0/0 -j POLICY-…"}},
		"addresses of IPv6 are not enforced": {out(networking.NetworkPolicyEgressRule{
			To: []networking.NetworkPolicyPeer{
				{IPBlock: &networking.IPBlock{CIDR: "::/0", Except: []string{"fc00::/7"}}},
				{IPBlock: &networking.IPBlock{CIDR: "8.8.8.8/32"}},
			},
		}), []string{"-d 8.8.8.8/32 " + allow}},
	} {
		t.Run(what, func(t *testing.T) {
			got := lines(t, each.spec)
			for index, line := range got {
				if place := strings.Index(line, prefix); place >= 0 {
					got[index] = line[:place] + prefix + "…"
				}
			}
			if !slices.Equal(got, each.wanted) {
				t.Fatalf("wanted %q, got %q", each.wanted, got)
			}
		})
	}
}
