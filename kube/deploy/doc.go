// Package deploy installs culvert in a cluster, waits until it works, and removes it again. It uses
// the API with the user's rights, and names missing ones. After an interruption, everything can be
// repeated; objects that are already right are not changed.
package deploy
