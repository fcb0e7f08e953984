// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// reconciles measures controller-runtime's manager with a controller that has nothing to do.
func reconciles(ctx context.Context, told told) error {
	lifeline()
	config, err := config()
	if err != nil {
		return err
	}
	start := now()
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  widgetScheme(),
		Metrics: metricsserver.Options{BindAddress: "127.0.0.1:0"},
	})
	if err != nil {
		return err
	}
	var ended, wanted atomic.Int64
	wanted.Store(int64(told.n))
	reached := make(chan struct{}, 1)
	reconcile := func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
		if told.mode == "read" {
			widget := &Widget{}
			if err := manager.GetClient().Get(ctx, request.NamespacedName, widget); err != nil || widget.Spec.Image == "" {
				return ctrl.Result{}, err
			}
		}
		if ended.Add(1) == wanted.Load() {
			reached <- struct{}{}
		}
		return ctrl.Result{}, nil
	}
	builder := ctrl.NewControllerManagedBy(manager).For(&Widget{})
	if told.mode == "mapped" {
		builder = builder.Watches(&Gadget{}, handler.EnqueueRequestsFromMapFunc(ownerOf))
	}
	if err := builder.Complete(reconcileFunc(reconcile)); err != nil {
		return err
	}
	go func() {
		if err := manager.Start(ctx); err != nil {
			fail(err)
		}
	}()
	<-reached
	if told.mode == "mapped" {
		start = now()
		wanted.Store(int64(2 * told.n))
		fmt.Println("reconciled")
		<-reached
	}
	taken := start.taken()
	widgets := &WidgetList{}
	if err := manager.GetCache().List(ctx, widgets, client.UnsafeDisableDeepCopy); err != nil {
		return err
	}
	if have := len(widgets.Items); have != told.n {
		return fmt.Errorf("there are %d Widgets in the store, not %d", have, told.n)
	}
	told.row(taken).with("case", told.mode).
		with("us_per_reconcile", rounded(taken.cpu.Seconds()*1e6/float64(told.n))).print()
	return nil
}

type reconcileFunc func(context.Context, reconcile.Request) (reconcile.Result, error)

func (f reconcileFunc) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	return f(ctx, request)
}

func ownerOf(_ context.Context, gadget client.Object) []reconcile.Request {
	owner := metav1.GetControllerOf(gadget.(*Gadget))
	if owner == nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: gadget.GetNamespace(), Name: owner.Name}}}
}
