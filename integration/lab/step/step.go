package step

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// failure is what Try and Must panic with.
type failure struct{ error }

// Try ends the function if err is not nil.
func Try(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Must returns v, or ends the function if err is not nil.
func Must[T any](v T, err error) T {
	Try(err)
	return v
}

// Must2 is Must for functions that return two values.
func Must2[T, U any](v T, w U, err error) (T, U) {
	Try(err)
	return v, w
}

// Catch must be deferred. It makes the error that ended the function its result, joined with an
// error of a deferred function.
func Catch(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		if *err == nil || errors.Is(r.error, *err) {
			*err = r.error
		} else {
			*err = errors.Join(r.error, *err)
		}
	default:
		panic(r)
	}
}

// Await calls step until it returns nil, with a pause of pace after each call. It returns the last
// error after limit, or when ctx is done.
func Await(ctx context.Context, limit, pace time.Duration, step func() error) error {
	for began := time.Now(); ; {
		err := step()
		if err == nil {
			return nil
		}
		if time.Since(began) > limit {
			return fmt.Errorf("for %v: %w", limit, err)
		}
		if e := Sleep(ctx, pace); e != nil {
			return errors.Join(e, err)
		}
	}
}

// Sleep waits for d, or until ctx is done; the error says why.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Poll is how often a condition outside this process is checked.
const Poll = 5 * time.Millisecond
