package rtnl

import (
	"errors"
	"testing"
)

func TestFailure(t *testing.T) {
	var f Failure
	for i, step := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("a"), true},
		{errors.New("a"), false},
		{errors.New("b"), true},
		{nil, true},
		{nil, false},
		{errors.New("b"), true},
	} {
		if got := f.Changed(step.err); got != step.want {
			t.Errorf("step %d, %v: %t, want %t", i, step.err, got, step.want)
		}
	}
}
