// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
)

// events measures new Widgets that come by watch, until a handler has seen all.
func events(ctx context.Context, told told) error {
	lifeline()
	config, err := config()
	if err != nil {
		return err
	}
	start := now()
	informer, run, err := widgetInformer(ctx, told.who, config)
	if err != nil {
		return err
	}
	latencies := make([]int64, 0, told.n)
	seen, all := 0, make(chan struct{})
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		if told.mode == "latency" {
			sent, err := strconv.ParseInt(object.(*Widget).Annotations["bench.example/sent"], 10, 64)
			if err != nil {
				fail(err)
			}
			latencies = append(latencies, time.Now().UnixNano()-sent)
		}
		if seen++; seen == told.n {
			close(all)
		}
	}})
	if err != nil {
		return err
	}
	go run()
	<-all
	taken := start.taken()
	if have := len(informer.GetStore().ListKeys()); have != told.n {
		return fmt.Errorf("there are %d Widgets in the store, not %d", have, told.n)
	}
	row := told.row(taken).with("case", told.mode).
		with("us_per_event", rounded(taken.cpu.Seconds()*1e6/float64(told.n)))
	if told.mode == "latency" {
		latencies = latencies[told.n/10:] // The connection was new.
		slices.Sort(latencies)
		at := func(percent int) float64 { return rounded(float64(latencies[len(latencies)*percent/100]) / 1e3) }
		row = row.with("p50_us", at(50)).with("p99_us", at(99))
	}
	row.print()
	return nil
}

// widgetInformer is an informer as the library's users get it, and what runs it.
func widgetInformer(ctx context.Context, who string, config *rest.Config) (toolscache.SharedIndexInformer, func(), error) {
	scheme := widgetScheme()
	switch who {
	case "client-go":
		config.GroupVersion = &widgets
		config.APIPath = "/apis"
		config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		client, err := rest.RESTClientFor(config)
		if err != nil {
			return nil, nil, err
		}
		source := toolscache.NewListWatchFromClient(client, "widgets", "", fields.Everything())
		byNamespace := toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}
		informer := toolscache.NewSharedIndexInformer(source, &Widget{}, 0, byNamespace)
		return informer, func() { informer.RunWithContext(ctx) }, nil
	case "controller-runtime":
		cache, err := ctrlcache.New(config, ctrlcache.Options{Scheme: scheme})
		if err != nil {
			return nil, nil, err
		}
		informer, err := cache.GetInformer(ctx, &Widget{}, ctrlcache.BlockUntilSynced(false))
		if err != nil {
			return nil, nil, err
		}
		run := func() {
			if err := cache.Start(ctx); err != nil {
				fail(err)
			}
		}
		return informer.(toolscache.SharedIndexInformer), run, nil
	default:
		return nil, nil, fmt.Errorf("nobody here is called %q", who)
	}
}
