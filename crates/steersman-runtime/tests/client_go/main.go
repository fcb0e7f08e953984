// SPDX-License-Identifier: Apache-2.0

// A replica as people write it in Go: it contends for a lease by client-go, and signs a config map while it leads.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how to reach the server")
	namespace := flag.String("namespace", "", "where lease and config map are")
	lease := flag.String("lease", "", "the lease")
	name := flag.String("name", "", "who this is")
	duration := flag.Duration("duration", 0, "how long others wait for one who does not renew")
	renew := flag.Duration("renew", 0, "how long this one tries to")
	retry := flag.Duration("retry", 0, "how often")
	flag.Parse()

	// It ends with the test, also if that was killed.
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3)
	}()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		panic(err)
	}
	// The embedded API server is not asked for protobuf.
	config.ContentType = "application/json"
	config.AcceptContentTypes = "application/json"
	client := kubernetes.NewForConfigOrDie(config)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Name: *lease, Namespace: *namespace},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: *name},
	}
	done := make(chan struct{})
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   *duration,
		RenewDeadline:   *renew,
		RetryPeriod:     *retry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				defer close(done)
				fmt.Println("copy: leading")
				patch := fmt.Appendf(nil, `{"data":{"seen":%q}}`, *name)
				for ctx.Err() == nil {
					_, _ = client.CoreV1().ConfigMaps(*namespace).Patch(
						ctx, "a", types.MergePatchType, patch, metav1.PatchOptions{})
					time.Sleep(50 * time.Millisecond)
				}
			},
			OnStoppedLeading: func() {},
		},
	})
}
