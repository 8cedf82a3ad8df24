package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	core "k8s.io/api/core/v1"
	storage "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/klog/v2"
)

const (
	name = "test-cluster/node-disk"
	// Kubernetes' own annotations between claims, scheduler and provisioners.
	selectedNode  = "volume.kubernetes.io/selected-node"
	provisionedBy = "pv.kubernetes.io/provisioned-by"
)

type provisioner struct {
	client  kubernetes.Interface
	folder  string
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
}

func (p *provisioner) reconcile(ctx context.Context) error {
	claims, err := p.claims.List(labels.Everything())
	if err != nil {
		return err
	}
	volumes, err := p.volumes.List(labels.Everything())
	if err != nil {
		return err
	}
	var failures []error
	for _, claim := range claims {
		if class := p.classOf(claim); class != nil {
			failures = append(failures, p.provision(ctx, claim, class))
		}
	}
	for _, volume := range volumes {
		if isOver(volume) {
			failures = append(failures, p.reclaim(ctx, volume))
		}
	}
	return errors.Join(failures...)
}

// classOf is the class of a claim that is to get a volume now: the scheduler has chosen the node of its pod.
func (p *provisioner) classOf(claim *core.PersistentVolumeClaim) *storage.StorageClass {
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil || claim.Annotations[selectedNode] == "" {
		return nil
	}
	if claim.Spec.StorageClassName == nil {
		return nil
	}
	class, err := p.classes.Get(*claim.Spec.StorageClassName)
	if err != nil || class.Provisioner != name {
		return nil
	}
	return class
}

func isOver(volume *core.PersistentVolume) bool {
	return volume.Annotations[provisionedBy] == name &&
		volume.Status.Phase == core.VolumeReleased &&
		volume.Spec.PersistentVolumeReclaimPolicy == core.PersistentVolumeReclaimDelete &&
		volume.DeletionTimestamp == nil
}

func (p *provisioner) provision(
	ctx context.Context, claim *core.PersistentVolumeClaim, class *storage.StorageClass,
) error {
	node := claim.Annotations[selectedNode]
	volume := fmt.Sprintf("pvc-%s", claim.UID)
	place := filepath.Join(p.folder, node, "volumes", volume)
	// As a new file system is, it is root's: without `fsGroup` nobody else can write there.
	if err := os.MkdirAll(place, 0o755); err != nil {
		return err
	}
	_, err := p.client.CoreV1().PersistentVolumes().Create(ctx, &core.PersistentVolume{
		ObjectMeta: meta.ObjectMeta{Name: volume, Annotations: map[string]string{provisionedBy: name}},
		Spec: core.PersistentVolumeSpec{
			AccessModes:                   claim.Spec.AccessModes,
			Capacity:                      core.ResourceList{core.ResourceStorage: *claim.Spec.Resources.Requests.Storage()},
			PersistentVolumeReclaimPolicy: *class.ReclaimPolicy,
			StorageClassName:              class.Name,
			VolumeMode:                    claim.Spec.VolumeMode,
			ClaimRef: &core.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim",
				Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeSource: core.PersistentVolumeSource{Local: &core.LocalVolumeSource{Path: place}},
			NodeAffinity:           onlyOn(node),
		},
	}, meta.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err == nil {
		klog.Infof("made %s on %s for %s/%s", volume, node, claim.Namespace, claim.Name)
	}
	return err
}

func onlyOn(node string) *core.VolumeNodeAffinity {
	return &core.VolumeNodeAffinity{Required: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{{
		MatchExpressions: []core.NodeSelectorRequirement{{
			Key: core.LabelHostname, Operator: core.NodeSelectorOpIn, Values: []string{node},
		}},
	}}}}
}

func (p *provisioner) reclaim(ctx context.Context, volume *core.PersistentVolume) error {
	if err := os.RemoveAll(volume.Spec.Local.Path); err != nil {
		return err
	}
	err := p.client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, meta.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	klog.Infof("removed %s", volume.Name)
	return nil
}
