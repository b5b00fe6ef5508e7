// Package deploy installs culvert in a cluster, waits until it works, and removes it again. It uses
// the API with the user's rights, and names those that are missing. After an interruption,
// everything can be repeated; objects that are as they should be are not changed.
package deploy
