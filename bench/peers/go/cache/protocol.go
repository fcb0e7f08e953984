// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// told is what the driver tells in the environment.
type told struct {
	bench, who, mode string
	n                int
}

func fromEnvironment() told {
	n, err := strconv.Atoi(os.Getenv("BENCH_N"))
	if err != nil {
		fail(fmt.Errorf("a driver sets BENCH_N; see bench/README.md"))
	}
	return told{bench: os.Getenv("BENCH"), who: os.Getenv("BENCH_WHO"), mode: os.Getenv("BENCH_MODE"), n: n}
}

type row map[string]any

// row has the columns that every benchmark has; the peak is that of now.
func (t told) row(taken taken) row {
	return row{
		"bench": t.bench, "who": t.who, "n": t.n,
		"wall_s": rounded(taken.wall.Seconds()), "cpu_s": rounded(taken.cpu.Seconds()), "peak_mb": rounded(memory("VmHWM:")),
	}
}

func (r row) with(name string, value any) row {
	r[name] = value
	return r
}

func (r row) print() {
	line, err := json.Marshal(r)
	if err != nil {
		fail(err)
	}
	fmt.Println(string(line))
}

// lifeline gives what the driver says, line by line. When the driver is gone, so is this process.
func lifeline() <-chan string {
	lines := make(chan string, 8)
	go func() {
		for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
			lines <- scanner.Text()
		}
		os.Exit(1)
	}()
	return lines
}

// start is a moment from which time and CPU time are taken.
type start struct {
	wall time.Time
	cpu  time.Duration
}

type taken struct{ wall, cpu time.Duration }

func now() start { return start{wall: time.Now(), cpu: cpu()} }

func (s start) taken() taken { return taken{wall: time.Since(s.wall), cpu: cpu() - s.cpu} }

func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// memory is in MB of a million bytes.
func memory(field string) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		fail(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, found := strings.CutPrefix(line, field); found {
			kib, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 64)
			if err == nil {
				return kib * 1024 / 1e6
			}
		}
	}
	return math.NaN()
}

func resetPeak() {
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		fail(err)
	}
}

func rounded(value float64) float64 { return math.Round(value*1e3) / 1e3 }

// config is that of KUBECONFIG, without a limit on requests.
func config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}
