// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrlcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	gets  = 200_000
	lists = 20
)

// reader is what differs between the two libraries.
type reader struct {
	get   func(types.NamespacedName) (*corev1.Pod, error)
	list  func() (int, error)
	store toolscache.Store
}

// read measures typed reads of the store, and a typed mapping function on events.
func read(ctx context.Context, told told) error {
	lifeline()
	times, err := strconv.Atoi(os.Getenv("BENCH_EVENTS"))
	if err != nil {
		return err
	}
	pods, events, err := loadPods(told.n)
	if err != nil {
		return err
	}
	keys := make([]types.NamespacedName, len(pods))
	for i, pod := range pods {
		keys[i] = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	}
	reader, err := podReader(ctx, told.who, pods)
	if err != nil {
		return err
	}
	measure(told, "get", gets, func(i int) int {
		pod, err := reader.get(keys[(i*7919)%len(keys)])
		if err != nil {
			fail(err)
		}
		return len(pod.Spec.NodeName)
	})
	measure(told, "list", lists, func(int) int {
		sum, err := reader.list()
		if err != nil {
			fail(err)
		}
		return sum
	})
	measure(told, "map", times, func(i int) int { return len(owner(pods[i%len(pods)]).Name) })
	measure(told, "decode_store_map", times, func(i int) int {
		pod, err := decode(events[i%len(events)])
		if err == nil {
			err = reader.store.Update(pod)
		}
		if err != nil {
			fail(err)
		}
		return len(owner(pod).Name)
	})
	return nil
}

// owner is the mapping function: from a Pod to the owner that controls it.
func owner(pod *corev1.Pod) types.NamespacedName {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return types.NamespacedName{Namespace: pod.Namespace, Name: owner.Name}
	}
	return types.NamespacedName{}
}

var jsonInfo, _ = runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)

// decode does what a watch of client-go does with the bytes of an event.
func decode(line []byte) (*corev1.Pod, error) {
	var event metav1.WatchEvent
	if _, _, err := jsonInfo.StreamSerializer.Serializer.Decode(line, nil, &event); err != nil {
		return nil, err
	}
	object, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), event.Object.Raw)
	if err != nil {
		return nil, err
	}
	return object.(*corev1.Pod), nil
}

func podReader(ctx context.Context, who string, pods []*corev1.Pod) (reader, error) {
	switch who {
	case "client-go":
		byNamespace := toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}
		store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, byNamespace)
		for _, pod := range pods {
			if err := store.Add(pod); err != nil {
				return reader{}, err
			}
		}
		lister := corelisters.NewPodLister(store)
		return reader{
			get: func(key types.NamespacedName) (*corev1.Pod, error) { return lister.Pods(key.Namespace).Get(key.Name) },
			list: func() (int, error) {
				pods, err := lister.List(labels.Everything())
				sum := 0
				for _, pod := range pods {
					sum += len(pod.Spec.NodeName)
				}
				return sum, err
			},
			store: store,
		}, nil
	case "controller-runtime":
		return ctrlReader(ctx, pods)
	default:
		return reader{}, fmt.Errorf("nobody here is called %q", who)
	}
}

// ctrlReader is the cache of controller-runtime, whose informer lists from memory.
func ctrlReader(ctx context.Context, pods []*corev1.Pod) (reader, error) {
	list := &corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
	for _, pod := range pods {
		list.Items = append(list.Items, *pod)
	}
	source := &toolscache.ListWatch{
		ListFunc:  func(metav1.ListOptions) (runtime.Object, error) { return list, nil },
		WatchFunc: func(metav1.ListOptions) (watch.Interface, error) { return watch.NewFake(), nil },
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	cache, err := runCache(ctx, &rest.Config{Host: "http://127.0.0.1:1"}, ctrlcache.Options{
		Mapper: mapper,
		NewInformer: func(_ toolscache.ListerWatcher, object runtime.Object, resync time.Duration, indexers toolscache.Indexers) toolscache.SharedIndexInformer {
			return toolscache.NewSharedIndexInformer(withoutStreaming{source}, object, resync, indexers)
		},
	})
	if err != nil {
		return reader{}, err
	}
	informer, err := cache.GetInformer(ctx, &corev1.Pod{}, ctrlcache.BlockUntilSynced(false))
	if err != nil {
		return reader{}, err
	}
	if !cache.WaitForCacheSync(ctx) {
		return reader{}, fmt.Errorf("the cache did not sync")
	}
	return reader{
		get: func(key types.NamespacedName) (*corev1.Pod, error) {
			pod := &corev1.Pod{}
			return pod, cache.Get(ctx, client.ObjectKey(key), pod)
		},
		list: func() (int, error) {
			pods := &corev1.PodList{}
			err := cache.List(ctx, pods)
			sum := 0
			for i := range pods.Items {
				sum += len(pods.Items[i].Spec.NodeName)
			}
			return sum, err
		},
		store: informer.(toolscache.SharedIndexInformer).GetStore(),
	}, nil
}

// withoutStreaming says that the source cannot stream a list.
type withoutStreaming struct{ *toolscache.ListWatch }

func (withoutStreaming) IsWatchListSemanticsUnSupported() bool { return true }

// loadPods reads one Pod a line, and makes an event of each.
func loadPods(n int) ([]*corev1.Pod, [][]byte, error) {
	file, err := os.Open(os.Getenv("BENCH_PODS"))
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	pods, events := make([]*corev1.Pod, 0, n), make([][]byte, 0, n)
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		pod := &corev1.Pod{}
		if err := json.Unmarshal(scanner.Bytes(), pod); err != nil {
			return nil, nil, err
		}
		pods = append(pods, pod)
		events = append(events, fmt.Appendf(nil, `{"type":"MODIFIED","object":%s}`, scanner.Bytes()))
	}
	if len(pods) != n {
		return nil, nil, fmt.Errorf("there are %d Pods in the file, not %d", len(pods), n)
	}
	return pods, events, scanner.Err()
}

var sink int

func measure(told told, name string, times int, run func(int) int) {
	start := now()
	for i := range times {
		sink += run(i)
	}
	taken := start.taken()
	told.row(taken).with("case", name).with("ops", times).
		with("ns_per_op", rounded(float64(taken.cpu.Nanoseconds())/float64(times))).print()
}
