package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// produce reads a line at a time, words divided by tabs, and answers each with a JSON object; an error is an answer too.
// It never decides by itself whether to go on after one.
func produce(address, transactionalID string) error {
	options, err := brokers(address)
	if err != nil {
		return err
	}
	options = append(options, kgo.TransactionalID(transactionalID), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	client, err := kgo.NewClient(options...)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx := context.Background()
	var lock sync.Mutex
	promised := []any{} // of each record since the last flush its offset, or its error
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Split(lines.Text(), "\t")
		answer := map[string]any{}
		err = nil
		switch words[0] {
		case "begin":
			err = client.BeginTransaction()
		case "send": // TOPIC PARTITION VALUE
			partition, _ := strconv.Atoi(words[2])
			record := &kgo.Record{Topic: words[1], Partition: int32(partition), Value: []byte(words[3])}
			client.Produce(ctx, record, func(record *kgo.Record, err error) {
				lock.Lock()
				defer lock.Unlock()
				if err != nil {
					promised = append(promised, err.Error())
				} else {
					promised = append(promised, record.Offset)
				}
			})
		case "flush":
			err = client.Flush(ctx)
			lock.Lock()
			answer["promised"], promised = promised, []any{}
			lock.Unlock()
		case "commit":
			err = client.EndTransaction(ctx, kgo.TryCommit)
		case "abort":
			if err = client.AbortBufferedRecords(ctx); err == nil {
				err = client.EndTransaction(ctx, kgo.TryAbort)
			}
		default:
			err = fmt.Errorf("no such command")
		}
		if err != nil {
			answer["error"] = err.Error()
		}
		if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
			return err
		}
	}
	return lines.Err()
}
