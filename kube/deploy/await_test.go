package deploy

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"culvert/integration/need"
)

// TestAwait: each missing thing is reported once, and so is each error. The last one is the error
// at the end.
func TestAwait(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		var said []string
		say := func(text string) { said = append(said, text) }
		looks := []string{"a", "a", "!away", "b"}
		look := func(context.Context) (string, error) {
			if len(looks) == 0 {
				return "", nil
			}
			next := looks[0]
			looks = looks[1:]
			if text, ok := strings.CutPrefix(next, "!"); ok {
				return "", errors.New(text)
			}
			return next, nil
		}
		if err := Await(t.Context(), say, look); err != nil || !slices.Equal(said, []string{"a", "away", "b"}) {
			t.Errorf("%v, %q", err, said)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		never := func(context.Context) (string, error) { return "an address", nil }
		if err := Await(ctx, say, never); err == nil || err.Error() != "still missing: an address" {
			t.Error(err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		cancel()
		if err := Await(ctx, say, never); err == nil || !strings.HasPrefix(err.Error(), "interrupted") {
			t.Error(err)
		}
	})
}

// TestAwaitStuck: a pod that cannot start ends the wait, unless it does start a moment later.
func TestAwaitStuck(t *testing.T) {
	need.Bubble(t, func(t *testing.T) {
		began := time.Now()
		look := func(context.Context) (string, error) {
			// the registry is back for a while
			if since := time.Since(began); since > 10*time.Second && since < 20*time.Second {
				return "the pod starts", nil
			}
			return "", &StuckError{"pod a: ErrImagePull"}
		}
		err := Await(t.Context(), func(string) {}, look)
		if took := time.Since(began).Round(time.Second); err == nil || !strings.HasPrefix(err.Error(),
			"pod a: ErrImagePull; correct it") || took != 20*time.Second+stuckTime {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// TestInterrupted: a change that is interrupted says so, and not which request failed.
func TestInterrupted(t *testing.T) {
	c, err := New(&rest.Config{Host: "http://127.0.0.1:9"})
	need.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{c.apply(ctx, newLease("milan")),
		c.remove(ctx, []*unstructured.Unstructured{newLease("milan")}, func(string) {})} {
		if !errors.Is(err, errInterrupted) {
			t.Error(err)
		}
	}
}
