package need

import (
	"sync"
	"testing"
	"time"
)

// TestBubble has goroutines of several bubbles fire timers at once.
func TestBubble(t *testing.T) {
	const bubbles, goroutines, timers = 2, 8, 5000
	for range bubbles {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			Bubble(t, func(*testing.T) {
				var all sync.WaitGroup
				for range goroutines {
					all.Go(func() {
						for range timers {
							<-time.NewTimer(0).C
						}
					})
				}
				all.Wait()
			})
		})
	}
}
