package main

import (
	"cmp"
	"slices"
	"strings"

	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// All that the rules of a node follow from.
type world struct {
	node       string
	pods       []*core.Pod
	namespaces map[string]labels.Set
	policies   []*networking.NetworkPolicy
}

func observe(
	pods list[*core.Pod], namespaces list[*core.Namespace], policies list[*networking.NetworkPolicy],
) (*world, error) {
	now := &world{namespaces: map[string]labels.Set{}}
	all, err := pods(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, pod := range all {
		if hasAddress(pod) {
			now.pods = append(now.pods, pod)
		}
	}
	spaces, err := namespaces(labels.Everything())
	if err != nil {
		return nil, err
	}
	for _, space := range spaces {
		now.namespaces[space.Name] = space.Labels
	}
	if now.policies, err = policies(labels.Everything()); err != nil {
		return nil, err
	}
	// The same world gives the same text, whatever order it is listed in.
	slices.SortFunc(now.pods, func(a, b *core.Pod) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(now.policies, func(a, b *networking.NetworkPolicy) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return now, nil
}

// hasAddress says whether a pod has an address that is its own: those that have ended gave it back.
func hasAddress(pod *core.Pod) bool {
	return pod.Status.PodIP != "" && !pod.Spec.HostNetwork &&
		pod.Status.Phase != core.PodSucceeded && pod.Status.Phase != core.PodFailed
}

// of is the policies that confine a pod in a direction. Without any, nothing does.
func (w *world) of(pod *core.Pod, direction networking.PolicyType) []*networking.NetworkPolicy {
	var found []*networking.NetworkPolicy
	for _, policy := range w.policies {
		if policy.Namespace == pod.Namespace && slices.Contains(policy.Spec.PolicyTypes, direction) &&
			selects(&policy.Spec.PodSelector, pod.Labels) {
			found = append(found, policy)
		}
	}
	return found
}

// podsOf is the pods that a peer of a policy means.
func (w *world) podsOf(namespace string, peer *networking.NetworkPolicyPeer) []*core.Pod {
	var found []*core.Pod
	for _, pod := range w.pods {
		inSpace := pod.Namespace == namespace
		if peer.NamespaceSelector != nil {
			inSpace = selects(peer.NamespaceSelector, w.namespaces[pod.Namespace])
		}
		if inSpace && (peer.PodSelector == nil || selects(peer.PodSelector, pod.Labels)) {
			found = append(found, pod)
		}
	}
	return found
}

func selects(selector *meta.LabelSelector, set labels.Set) bool {
	parsed, err := meta.LabelSelectorAsSelector(selector)
	// The API server has validated it.
	return err == nil && parsed.Matches(set)
}
