// Command provisioner makes the volumes of a test cluster: folders on the disks of its nodes, which it sees all, since
// the nodes are folders of one machine.
package main

import (
	"context"
	"flag"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

// What failed is tried again after this time, also without a change.
const retryPeriod = 10 * time.Second

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how the cluster is reached")
	folder := flag.String("folder", "", "the cluster's folder, with one for each node")
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
	run(ctx, client, *folder)
}

// run compares what is claimed with what there is, whenever something has changed.
func run(ctx context.Context, client kubernetes.Interface, folder string) {
	factory := informers.NewSharedInformerFactory(client, 0)
	p := &provisioner{
		client:  client,
		folder:  folder,
		claims:  factory.Core().V1().PersistentVolumeClaims().Lister(),
		volumes: factory.Core().V1().PersistentVolumes().Lister(),
		classes: factory.Storage().V1().StorageClasses().Lister(),
	}
	// One is enough: whoever takes it looks at everything.
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
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().PersistentVolumeClaims().Informer(),
		factory.Core().V1().PersistentVolumes().Informer(),
		factory.Storage().V1().StorageClasses().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			klog.Fatal(err)
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	retry := time.NewTicker(retryPeriod)
	for {
		if err := p.reconcile(ctx); err != nil && ctx.Err() == nil {
			klog.Error(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-retry.C:
		}
	}
}
