// SPDX-License-Identifier: Apache-2.0

// The peers of bench/queue: the same loops over controller-runtime's priority queue and client-go's work queue.
//
// Prints one JSON object per line: cases one_key (add, get, done of a single key), waiting_1m (one million keys wait;
// take one, finish it, add it again) and fill_drain_1m (add one million keys, then get and finish them all). Both queues run as a controller would use them: controller-runtime's
// with its default metrics provider, client-go's as a rate-limiting queue with the same provider.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	_ "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type queue interface {
	Add(reconcile.Request)
	Get() (reconcile.Request, bool)
	Done(reconcile.Request)
	Forget(reconcile.Request)
	Len() int
	ShutDown()
}

type line struct {
	Bench   string  `json:"bench"`
	Who     string  `json:"who"`
	Case    string  `json:"case"`
	N       int     `json:"n"`
	WallS   float64 `json:"wall_s"`
	CPUS    float64 `json:"cpu_s"`
	PeakMB  float64 `json:"peak_mb"`
	NsPerOp float64 `json:"ns_per_op"`
}

func main() {
	quick := flag.Bool("quick", false, "a tenth of the operations")
	only := flag.String("who", "", "controller-runtime or client-go; both if empty")
	flag.Parse()
	operations := 1_000_000
	if *quick {
		operations = 100_000
	}
	makers := []struct {
		who  string
		make func(name string) queue
	}{
		{"controller-runtime", func(name string) queue { return priorityqueue.New[reconcile.Request](name) }},
		{"client-go", func(name string) queue {
			return workqueue.NewTypedRateLimitingQueueWithConfig(
				workqueue.DefaultTypedControllerRateLimiter[reconcile.Request](),
				workqueue.TypedRateLimitingQueueConfig[reconcile.Request]{Name: name},
			)
		}},
	}
	for _, maker := range makers {
		if *only != "" && *only != maker.who {
			continue
		}
		for _, name := range []string{"one_key", "waiting_1m", "fill_drain_1m"} {
			measure(maker.who, name, maker.make(maker.who+name), operations)
			debug.FreeOSMemory()
		}
	}
}

const waiting = 1_000_000

// measure runs one case. Only the loop of the case is timed, not the making of its keys.
func measure(who, name string, q queue, operations int) {
	resetPeak()
	count := waiting
	if name == "one_key" {
		count = 1
	}
	keys := make([]reconcile.Request, count)
	for i := range keys {
		keys[i] = reconcile.Request{NamespacedName: types.NamespacedName{
			Namespace: fmt.Sprintf("namespace-%d", i%100),
			Name:      fmt.Sprintf("object-%d", i),
		}}
	}
	if name == "waiting_1m" {
		for _, key := range keys {
			q.Add(key)
		}
		// controller-runtime moves adds from a buffer in the background.
		for q.Len() < waiting {
			time.Sleep(time.Millisecond)
		}
		keys = nil
	}
	runtime.GC()
	finish := func() reconcile.Request {
		key, _ := q.Get()
		q.Forget(key)
		q.Done(key)
		return key
	}
	cpu, start := cpuSeconds(), time.Now()
	switch name {
	case "one_key":
		for range operations {
			q.Add(keys[0])
			finish()
		}
	case "waiting_1m":
		for range operations {
			q.Add(finish())
		}
	case "fill_drain_1m":
		operations = waiting
		for _, key := range keys {
			q.Add(key)
		}
		for range keys {
			finish()
		}
	}
	wall := time.Since(start).Seconds()
	out, err := json.Marshal(line{
		Bench: "queue", Who: who, Case: name, N: operations,
		WallS: wall, CPUS: cpuSeconds() - cpu, PeakMB: peakMB(), NsPerOp: wall * 1e9 / float64(operations),
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(out))
	q.ShutDown()
}

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(usage.Utime) + seconds(usage.Stime)
}

// resetPeak starts the account of the peak anew, so that a case does not show that of the one before it.
func resetPeak() {
	// Where this is not permitted the peak is that of the whole run.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
}

func peakMB() float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for _, row := range strings.Split(string(status), "\n") {
		var kb float64
		if n, _ := fmt.Sscanf(row, "VmHWM: %f kB", &kb); n == 1 {
			return kb / 1024
		}
	}
	return 0
}
