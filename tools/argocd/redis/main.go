// Command redis is the cache that Argo CD keeps its manifests in: miniredis, which its own command line uses when there
// is no server. It listens on the address given as its only argument until it is killed.
package main

import (
	"log"
	"os"
	"time"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: redis ADDRESS")
	}
	server := miniredis.NewMiniRedis()
	if err := server.StartAddr(os.Args[1]); err != nil {
		log.Fatal(err)
	}
	// Its keys do not age by themselves: it was made for tests that say what time it is.
	for range time.Tick(time.Second) {
		server.FastForward(time.Second)
	}
}
