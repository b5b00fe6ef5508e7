//go:build nokube

package main

import (
	"context"
	"errors"
)

func runLiqo(context.Context, *liqoFlags) error {
	return errors.New("--liqo: this culvert was built with the tag nokube; build it without")
}
