package unixsocket

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"culvert/integration/need"
)

// TestHold: a name has one holder, and another one once that has released it.
func TestHold(t *testing.T) {
	name := fmt.Sprintf("culvert-test-%d", os.Getpid())
	release, err := Hold(name)
	need.NoError(t, err)
	if r, err := Hold(name); !errors.Is(err, ErrHeld) || r != nil {
		t.Errorf("a second holder: %v", err)
	}
	release()
	release, err = Hold(name)
	if err != nil {
		t.Fatalf("after the first one: %v", err)
	}
	release()
}
