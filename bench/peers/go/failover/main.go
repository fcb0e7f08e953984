// SPDX-License-Identifier: Apache-2.0

// A replica in the benchmark `failover`, with controller-runtime: one controller of ConfigMaps that does nothing.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The lease that bench/failover/src/lib.rs has, too.
const (
	duration = 3 * time.Second
	renew    = 2 * time.Second
	retry    = 400 * time.Millisecond
)

func main() {
	ctrl.SetLogger(klog.Background())
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	go endWithDriver()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	config.QPS = -1
	leaseDuration, renewDeadline, retryPeriod := duration, renew, retry
	manager, err := ctrl.NewManager(config, ctrl.Options{
		Metrics:                       metrics.Options{BindAddress: "0"},
		LeaderElection:                true,
		LeaderElectionID:              os.Getenv("BENCH_LEASE"),
		LeaderElectionNamespace:       "default",
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &leaseDuration,
		RenewDeadline:                 &renewDeadline,
		RetryPeriod:                   &retryPeriod,
	})
	if err != nil {
		return err
	}
	warm := os.Getenv("BENCH_MODE") == "warm"
	ready := make(chan struct{})
	var first sync.Once
	reconciler := reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		first.Do(func() {
			<-ready
			fmt.Println("reconciled")
		})
		return reconcile.Result{}, nil
	})
	err = ctrl.NewControllerManagedBy(manager).
		For(&corev1.ConfigMap{}).
		WithOptions(controller.Options{EnableWarmup: &warm}).
		Complete(reconciler)
	if err != nil {
		return err
	}
	go func() {
		if warm {
			waitForList(ctx, manager)
		}
		fmt.Println("ready")
		close(ready)
	}()
	return manager.Start(ctx)
}

// waitForList returns when the informer that the warm-up runs has its list.
func waitForList(ctx context.Context, manager ctrl.Manager) {
	for ctx.Err() == nil {
		if _, err := manager.GetCache().GetInformer(ctx, &corev1.ConfigMap{}); err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// endWithDriver ends this process when the driver is gone.
func endWithDriver() {
	for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
	}
	os.Exit(1)
}
