package wg

import (
	"testing"

	"culvert/integration/need"
)

// TestTunWindows: packets inside wireguard-go count in each direction, and while none comes back
// batches are small. Neither direction allocates.
func TestTunWindows(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		path := idlePath()
		path.Read = func(bufs [][]byte, sizes []int, offset int) (int, error) { return len(bufs), nil }
		out, in := newWindow(), newWindow()
		d := newTunDevice(path, newBind(out, in, nil), 1340)
		bufs, sizes := make([][]byte, BatchSize), make([]int, BatchSize)
		read := func(want int) {
			if n, err := d.Read(bufs, sizes, 0); n != want || err != nil {
				t.Errorf("read %d, %v, want %d", n, err, want)
			}
		}
		cycle := func() {
			read(BatchSize)
			out.take(BatchSize)
			in.give(BatchSize)
			d.Write(bufs, 0)
		}
		if n := testing.AllocsPerRun(100, cycle); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if in.handed.Load() != in.done.Load() {
			t.Errorf("%d given, %d taken", in.handed.Load(), in.done.Load())
		}
		for range windowPackets() / BatchSize {
			read(BatchSize)
		}
		read(stalledBatch) // after the window's patience
		read(stalledBatch)
		out.take(1)
		read(BatchSize)
	})
}
