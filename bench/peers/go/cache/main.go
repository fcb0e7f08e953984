// SPDX-License-Identifier: Apache-2.0

// Command cache takes part in the cache benchmarks for client-go and controller-runtime. A driver starts it and says
// in BENCH and BENCH_WHO what it is; bench/README.md has the protocol.
package main

import (
	"context"
	"fmt"
	"os"

	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	ctrllog.SetLogger(klog.Background())
	benches := map[string]func(context.Context, told) error{
		"sync": sync, "events": events, "read": read, "reconcile": reconciles, "kit": kit,
	}
	told := fromEnvironment()
	run := benches[told.bench]
	if run == nil {
		fail(fmt.Errorf("there is no benchmark %q", told.bench))
	}
	if err := run(context.Background(), told); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}
