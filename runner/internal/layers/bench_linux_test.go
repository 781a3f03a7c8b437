package layers

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"hermes-exec/runner/internal/wipe"
)

// benchmarkCopy copies directories with files of some bytes, measured first as for a checkpoint, and
// reports the shortest time, because other programs disturb the mean.
func benchmarkCopy(b *testing.B, directories, files, size int) {
	dir := layerDir(b)
	must(b, os.Mkdir(dir+"/from", 0o755))
	content := bytes.Repeat([]byte("x"), size)
	for d := range directories {
		below := fmt.Sprintf("%s/from/%d", dir, d)
		must(b, os.Mkdir(below, 0o755))
		for f := range files {
			must(b, os.WriteFile(fmt.Sprintf("%s/%d", below, f), content, 0o644))
		}
	}
	shortest := time.Hour
	for b.Loop() {
		began := time.Now()
		_, err := Measure(dir+"/from", Bound{})
		must(b, err)
		must(b, Copy(b.Context(), dir+"/from", dir+"/to", Bound{}))
		shortest = min(shortest, time.Since(began))
		b.StopTimer()
		for _, problem := range wipe.RemoveTree(dir + "/to") {
			b.Error(problem)
		}
		b.StartTimer()
	}
	b.ReportMetric(float64(shortest.Microseconds())/1000, "min-ms")
}

func BenchmarkCopyOf20Files(b *testing.B) { benchmarkCopy(b, 4, 5, 2000) }
func BenchmarkCopyOf300MB(b *testing.B)   { benchmarkCopy(b, 3, 10, 10<<20) }
func BenchmarkCopyOf15000(b *testing.B)   { benchmarkCopy(b, 150, 100, 2000) }
