// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	gosync "sync"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// kit measures an operator with five children for each Site, written with CreateOrUpdate. Each mutate function sets
// only the fields that the operator decides on, so that an unchanged child is not updated.
func kit(ctx context.Context, told told) error {
	driver := lifeline()
	config, err := config()
	if err != nil {
		return err
	}
	start := now()
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  siteScheme(),
		Metrics: metricsserver.Options{BindAddress: "127.0.0.1:0"},
	})
	if err != nil {
		return err
	}
	rounds := &rounds{wanted: told.n, seen: map[types.NamespacedName]string{}, complete: make(chan struct{}, 1)}
	sites := &sites{Client: manager.GetClient(), rounds: rounds}
	err = ctrl.NewControllerManagedBy(manager).For(&Site{}).
		Owns(&corev1.ConfigMap{}).Owns(&corev1.Secret{}).Owns(&corev1.ServiceAccount{}).
		Owns(&corev1.Service{}).Owns(&appsv1.Deployment{}).
		Complete(sites)
	if err != nil {
		return err
	}
	go func() {
		if err := manager.Start(ctx); err != nil {
			fail(err)
		}
	}()
	var before int
	for line := range driver {
		words := strings.Fields(line)
		switch {
		case line == "measure":
			start, before = now(), rounds.reconciles()
			fmt.Println("armed")
		case line == "end":
			return nil
		case len(words) == 3 && words[0] == "row":
			requests, err := strconv.Atoi(words[2])
			if err != nil {
				return err
			}
			taken, reconciles := start.taken(), rounds.reconciles()-before
			told.row(taken).with("case", words[1]).
				with("us_per_reconcile", rounded(taken.cpu.Seconds()*1e6/float64(reconciles))).
				with("reconciles", reconciles).with("requests", requests).print()
		default:
			rounds.await(line)
			fmt.Println("reconciled")
		}
	}
	return nil
}

type sites struct {
	client.Client
	rounds *rounds
}

func (s *sites) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	site := &Site{}
	if err := s.Get(ctx, request.NamespacedName, site); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	labels := map[string]string{"app.kubernetes.io/name": "site", "app.kubernetes.io/instance": site.Name}
	named := metav1.ObjectMeta{Namespace: site.Namespace, Name: site.Name}
	page := &corev1.ConfigMap{ObjectMeta: named}
	token := &corev1.Secret{ObjectMeta: named}
	account := &corev1.ServiceAccount{ObjectMeta: named}
	service := &corev1.Service{ObjectMeta: named}
	deployment := &appsv1.Deployment{ObjectMeta: named}
	children := []struct {
		object client.Object
		mutate func()
	}{
		{page, func() {
			page.Data = map[string]string{"index.html": site.Spec.Page}
		}},
		{token, func() {
			token.Data = map[string][]byte{"site": []byte(site.Name)}
		}},
		{account, func() {}},
		{service, func() {
			service.Spec.ClusterIP = corev1.ClusterIPNone
			service.Spec.Selector = labels
			if len(service.Spec.Ports) != 1 {
				service.Spec.Ports = []corev1.ServicePort{{}}
			}
			service.Spec.Ports[0].Name = "http"
			service.Spec.Ports[0].Port = 80
			service.Spec.Ports[0].TargetPort = intstr.FromInt32(8080)
		}},
		{deployment, func() {
			mutateDeployment(deployment, site, labels)
		}},
	}
	for _, child := range children {
		_, err := controllerutil.CreateOrUpdate(ctx, s.Client, child.object, func() error {
			child.object.SetLabels(merged(child.object.GetLabels(), labels))
			child.mutate()
			return controllerutil.SetControllerReference(site, child.object, s.Scheme())
		})
		if err != nil {
			return ctrl.Result{}, err
		}
	}
	if err := s.updateStatus(ctx, site, deployment); err != nil {
		return ctrl.Result{}, err
	}
	s.rounds.reconciled(request.NamespacedName, site.Annotations["bench.example/round"])
	return ctrl.Result{}, nil
}

func (s *sites) updateStatus(ctx context.Context, site *Site, deployment *appsv1.Deployment) error {
	before := site.Status
	before.Conditions = append([]metav1.Condition(nil), before.Conditions...)
	site.Status.ObservedGeneration = site.Generation
	site.Status.ReadyReplicas = deployment.Status.ReadyReplicas
	ready := metav1.Condition{
		Type: "Ready", Status: metav1.ConditionTrue, Reason: "Serving", ObservedGeneration: site.Generation,
	}
	if deployment.Status.ReadyReplicas < site.Spec.Replicas {
		ready.Status, ready.Reason = metav1.ConditionFalse, "Progressing"
	}
	meta.SetStatusCondition(&site.Status.Conditions, ready)
	if equality.Semantic.DeepEqual(before, site.Status) {
		return nil
	}
	return s.Status().Update(ctx, site)
}

func mutateDeployment(deployment *appsv1.Deployment, site *Site, labels map[string]string) {
	deployment.Spec.Replicas = &site.Spec.Replicas
	if deployment.Spec.Selector == nil {
		deployment.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	}
	pod := &deployment.Spec.Template
	pod.Labels = labels
	pod.Spec.ServiceAccountName = site.Name
	if len(pod.Spec.Volumes) != 1 {
		pod.Spec.Volumes = []corev1.Volume{{}}
	}
	pod.Spec.Volumes[0].Name = "page"
	if pod.Spec.Volumes[0].ConfigMap == nil {
		pod.Spec.Volumes[0].ConfigMap = &corev1.ConfigMapVolumeSource{}
	}
	pod.Spec.Volumes[0].ConfigMap.Name = site.Name
	if len(pod.Spec.Containers) != 1 {
		pod.Spec.Containers = []corev1.Container{{}}
	}
	container := &pod.Spec.Containers[0]
	container.Name = "web"
	container.Image = site.Spec.Image
	if len(container.Ports) != 1 {
		container.Ports = []corev1.ContainerPort{{}}
	}
	container.Ports[0].Name = "http"
	container.Ports[0].ContainerPort = 8080
	container.VolumeMounts = []corev1.VolumeMount{{Name: "page", MountPath: "/srv"}}
}

func merged(have, wanted map[string]string) map[string]string {
	if have == nil {
		have = map[string]string{}
	}
	for key, value := range wanted {
		have[key] = value
	}
	return have
}

// rounds knows the round, an annotation of a Site, that each Site was last reconciled in.
type rounds struct {
	mutex    gosync.Mutex
	round    string
	wanted   int
	current  int
	ended    int
	seen     map[types.NamespacedName]string
	complete chan struct{}
}

// await returns when every Site was reconciled in this round.
func (r *rounds) await(round string) {
	r.mutex.Lock()
	r.round, r.current = round, 0
	for _, last := range r.seen {
		if last == round {
			r.current++
		}
	}
	complete := r.current == r.wanted
	r.mutex.Unlock()
	if !complete {
		<-r.complete
	}
}

func (r *rounds) reconciles() int {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.ended
}

func (r *rounds) reconciled(name types.NamespacedName, round string) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.ended++
	last := r.seen[name]
	r.seen[name] = round
	if round != r.round || last == round {
		return
	}
	if r.current++; r.current == r.wanted {
		r.complete <- struct{}{}
	}
}
