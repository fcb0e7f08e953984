// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
)

// sync measures the first sync of all Pods, or a forced relist.
func sync(ctx context.Context, told told) error {
	driver := lifeline()
	config, err := config()
	if err != nil {
		return err
	}
	start := now()
	informer, err := podInformer(ctx, told.who, config)
	if err != nil {
		return err
	}
	if !toolscache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return fmt.Errorf("the informer did not sync")
	}
	taken := start.taken()
	store := informer.GetStore()
	if have := len(store.ListKeys()); have != told.n {
		return fmt.Errorf("there are %d Pods in the store, not %d", have, told.n)
	}
	if told.mode == "sync" {
		told.row(taken).with("case", "sync").print()
		return nil
	}

	fmt.Println("synced")
	<-driver
	steady := memory("VmRSS:")
	resetPeak()
	start = now()
	fmt.Println("armed")
	for marker := os.Getenv("BENCH_MARKER"); ; time.Sleep(10 * time.Millisecond) {
		if _, exists, _ := store.GetByKey(marker); exists {
			break
		}
	}
	peak := memory("VmHWM:")
	told.row(start.taken()).with("case", "relist").
		with("steady_mb", rounded(steady)).with("relist_ratio", rounded(peak/steady)).print()
	return nil
}

// podInformer runs an informer as the library's users get it.
func podInformer(ctx context.Context, who string, config *rest.Config) (toolscache.SharedIndexInformer, error) {
	switch who {
	case "client-go":
		config.ContentType = runtime.ContentTypeJSON
	case "client-go protobuf":
		config.ContentType = runtime.ContentTypeProtobuf
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	case "controller-runtime":
		cache, err := runCache(ctx, config, ctrlcache.Options{})
		if err != nil {
			return nil, err
		}
		informer, err := cache.GetInformer(ctx, &corev1.Pod{}, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return nil, err
		}
		return informer.(toolscache.SharedIndexInformer), nil
	default:
		return nil, fmt.Errorf("nobody here is called %q", who)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Pods().Informer()
	factory.Start(ctx.Done())
	return informer, nil
}

func runCache(ctx context.Context, config *rest.Config, options ctrlcache.Options) (ctrlcache.Cache, error) {
	cache, err := ctrlcache.New(config, options)
	if err != nil {
		return nil, err
	}
	go func() {
		if err := cache.Start(ctx); err != nil {
			fail(err)
		}
	}()
	return cache, nil
}
