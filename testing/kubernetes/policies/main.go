// Command policies enforces network policies on a node: it translates those that concern the node's pods into rules of
// its packet filter, whenever something has changed.
package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"
	"time"

	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

const (
	// Changes come in bursts: a rule set is made of all that come within this time.
	settleTime = 50 * time.Millisecond
	// What failed is tried again after this time, and what others removed is put back.
	retryPeriod = 30 * time.Second
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how the cluster is reached")
	node := flag.String("node", "", "the node whose pods are confined")
	dns := flag.String("dns", "", "the address of the DNS server, which policies see as a pod of kube-system")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		klog.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		klog.Fatal(err)
	}
	run(ctx, client, *node, *dns)
}

func run(ctx context.Context, client kubernetes.Interface, node, dns string) {
	factory := informers.NewSharedInformerFactory(client, 0)
	pods := factory.Core().V1().Pods()
	namespaces := factory.Core().V1().Namespaces()
	policies := factory.Networking().V1().NetworkPolicies()
	changed := make(chan struct{}, 1)
	notify := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { notify() },
		UpdateFunc: func(any, any) { notify() },
		DeleteFunc: func(any) { notify() },
	}
	for _, informer := range []cache.SharedIndexInformer{pods.Informer(), namespaces.Informer(), policies.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			klog.Fatal(err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	filter := &filter{}
	retry := time.NewTicker(retryPeriod)
	for {
		now, err := observe(pods.Lister().List, namespaces.Lister().List, policies.Lister().List)
		if err == nil {
			now.node = node
			now.pods = append(now.pods, dnsServer(dns))
			err = filter.apply(ctx, now.rules())
		}
		if err != nil && ctx.Err() == nil {
			klog.Error(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
			time.Sleep(settleTime)
		case <-retry.C:
			filter.forget()
		}
	}
}

// A lister of client-go's.
type list[T any] func(labels.Selector) ([]T, error)

// dnsServer is a pod that stands for the DNS server: in other clusters it is one, and policies are written for these.
func dnsServer(address string) *core.Pod {
	pod := &core.Pod{}
	pod.Namespace = "kube-system"
	pod.Labels = map[string]string{"k8s-app": "kube-dns"}
	pod.Status.PodIP = address
	return pod
}
